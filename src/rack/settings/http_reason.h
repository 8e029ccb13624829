// Why a question over HTTP got no answer, for people.
#pragma once

#include <httplib.h>

#include <string>

namespace sluice::rack {

// httplib's word for it, in words: "nothing listens there".
std::string reason_of(httplib::Error error);

}  // namespace sluice::rack
