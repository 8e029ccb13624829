#include "rack/settings/http_reason.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sluice::rack {
namespace {

// httplib says the same of a process that may have no more descriptors.
std::string reason_of_no_connection() {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return std::strerror(errno);
  close(socket);
  return "nothing listens there, or no way leads to it";
}

}  // namespace

std::string reason_of(httplib::Error error) {
  using enum httplib::Error;
  switch (error) {
    case Connection: return reason_of_no_connection();
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
