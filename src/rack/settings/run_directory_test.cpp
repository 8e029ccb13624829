#include "rack/settings/run_directory.h"

#include <gtest/gtest.h>

#include <string>

#include "rack/settings/names.h"

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

TEST(RunDirectory, WhichSocketIsANamesDoesNotHangOnHowTheDirectoryIsSpelled) {
  const std::string far(RunDirectory::kMaxPath - 1, 'd');
  for (std::size_t letters = 1; letters <= 60; ++letters) {
    const std::string name(letters, 'n');
    const std::string is_near = RunDirectory("d").http_socket(name);
    const std::string is_far = RunDirectory("/" + far).http_socket(name);
    EXPECT_EQ(is_near.substr(1), is_far.substr(RunDirectory::kMaxPath)) << letters;
    EXPECT_LE(is_far.size(), RunDirectory::kMaxSocketPath) << letters;
    EXPECT_EQ(is_far.ends_with("/" + name + ".http.sock"), letters <= RunDirectory::kMaxSocketName) << letters;
  }
}

TEST(RunDirectory, WhatStandsForALongNameIsNobodysName) {
  const RunDirectory run("/run/sluice");
  const std::string socket = run.http_socket(std::string(RunDirectory::kMaxSocketName + 1, 'n'));
  const std::size_t from = run.path().size() + 1;
  const std::string digits = socket.substr(from, socket.find(".http.sock") - from);
  EXPECT_EQ(digits.size(), RunDirectory::kMaxSocketName);
  EXPECT_FALSE(is_name(digits, kMostNodeName)) << digits;
}

}  // namespace
}  // namespace sluice::rack
