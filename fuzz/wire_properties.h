// What must hold for any input whatever; the fuzzers look for one that breaks it, the replay test goes over those kept.
//
// Frames:     nothing is read outside them; all that read frames (frame.h, frame_inline.h) say the same, and what a second
//             statement of the rules says; so with ICRCs, summed once more byte by byte; edits leave what a frame put
//             together anew would be.
// CM:         what is read is written again to the last bit that means something.
// Errors:     a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace sluice::fuzz {

void check_frame(ByteView input);
void check_cm(ByteView input);

}  // namespace sluice::fuzz
