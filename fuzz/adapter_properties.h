// What must hold for a NIC whatever frames reach it, whatever its program asks for, in whatever order.
//
// Properties:  a frame changes memory only if it is counted as executed (a request) or accepted (a response), and then only where the
//              rights of a region allow it: guards, a read-only region and another domain's region never change; every frame adds to
//              a counter that says what became of it; every NAK that leaves has been counted, and the refusal it tells of as well;
//              what was executed has written the bytes of the WRITE, or the result of the atomic, where it says, and nothing else;
//              answers to READs and atomics bring what is there, or was there before; what leaves is whole;
//              requests leave, are answered and complete as requester_model.h says, and come to what responder_model.h says;
//              work completes once and in order;
//              left alone, the NIC comes to rest with nothing pending.
// Errors:      a property that does not hold aborts, by SLUICE_CHECK.
#pragma once

#include "base/bytes.h"
#include "rc/counters.h"

namespace sluice::fuzz {

// Takes the input as a script of steps. Returns what the NIC has counted, by which a test sees what its inputs reach.
rc::AdapterCounters check_adapter(ByteView input);

}  // namespace sluice::fuzz
