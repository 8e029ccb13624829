// What must hold of SwordBox whatever crosses it.
#pragma once

#include "base/bytes.h"

namespace sluice::fuzz {

// Plays the script against a box with both its applications: requests and answers of a few clients, nearly right ones and wrong ones, time,
// connections that come and go. Aborts when something does not hold.
void check_swordbox(ByteView script);

}  // namespace sluice::fuzz
