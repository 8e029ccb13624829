#include "rack/settings/run_directory.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice::rack {
namespace {

TEST(RunDirectory, ANameThatIsTooLongForASocketsPathHasASocketOfItsOwnAllTheSame) {
  EXPECT_EQ(RunDirectory("/run/sluice").http_socket("memory1"), "/run/sluice/memory1.http.sock");
  const RunDirectory longest("/" + std::string(RunDirectory::kMaxPath - 1, 'd'));
  std::string name(200, 'n');
  const std::string socket = longest.http_socket(name);
  EXPECT_LE(socket.size(), RunDirectory::kMaxSocketPath);
  EXPECT_TRUE(socket.ends_with(".http.sock")) << "or it is not removed with the rack";
  name.back() = 'm';
  EXPECT_NE(longest.http_socket(name), socket);
}

}  // namespace
}  // namespace sluice::rack
