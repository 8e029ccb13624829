#include "rack/settings/http_reason.h"

namespace sluice::rack {

std::string reason_of(httplib::Error error) {
  using enum httplib::Error;
  switch (error) {
    case Connection: return "nothing listens there, or no way leads to it";
    case ConnectionTimeout: return "no connection came about in time";
    case Read: return "the connection was ended, or no answer came in time";
    case Write: return "the question could not be sent";
    case BindIPAddress: return "this machine has no address to ask from";
    case Canceled: return "interrupted";
    case SSLConnection: return "no TLS came about";
    case SSLLoadingCerts: return "this machine's certificates cannot be read";
    case SSLServerVerification: return "its certificate is not by the authority that it should be";
    default: return "no answer that makes sense";
  }
}

}  // namespace sluice::rack
