// Certificates of a rack's own authority: who is let in, and who is told what.
#include "rack/directory/authority.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iterator>

#include "rack/directory/directory_http.h"
#include "rack/directory/invitation.h"
#include "rack/directory/sqlite_directory.h"
#include "rack/settings/private_file.h"
#include "rack/switch/machine_gate.h"

namespace sluice::rack {
namespace {

using telemetry::TlsFiles;
using testing::HasSubstr;

class AuthorityTest : public testing::Test {
 protected:
  AuthorityTest() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~AuthorityTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  Authority authority(const std::string& name, const std::string& host = "127.0.0.1") {
    if (!Authority::is_there(path(name))) {
      EXPECT_TRUE(Authority::create(path(name), {host}));
    }
    return *Authority::open(path(name));
  }
  // A machine's files, by the authority `by`; what it believes in is `believes`.
  TlsFiles machine(const std::string& name, const std::string& by, const std::string& believes) {
    const auto issued = authority(by).invite(name, 30);
    EXPECT_TRUE(issued) << issued.error().message;
    EXPECT_TRUE(write_private_file(path(name + ".pem"), issued->certificate));
    EXPECT_TRUE(write_private_file(path(name + ".key"), issued->key));
    return {path(believes) + "/authority.pem", path(name + ".pem"), path(name + ".key")};
  }
  void serve(const std::string& name, const std::string& host = "127.0.0.1") {
    authority(name, host);
    directory_ = *SqliteDirectory::open(":memory:", {}, [] { return Time(); });
    auto server = DirectoryServer::start(*directory_, {"127.0.0.1:0", Authority::server_files(path(name))});
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  Result<Snapshot> ask(const TlsFiles& files) {
    return DirectoryClient({server_->address(), files}, Duration{}).nodes();
  }
  static int mode_of(const std::string& file) {
    struct stat status {};
    return stat(file.c_str(), &status) == 0 ? static_cast<int>(status.st_mode & 0777) : -1;
  }

  std::string folder_;
  std::unique_ptr<SqliteDirectory> directory_;
  std::unique_ptr<DirectoryServer> server_;
};

TEST_F(AuthorityTest, LetsInWhomItInvited) {
  serve("ours");
  const auto nodes = ask(machine("m2", "ours", "ours"));
  EXPECT_TRUE(nodes) << nodes.error().message;
  EXPECT_EQ(server_->handshakes_failed(), 0u);
}

TEST_F(AuthorityTest, KeepsOutWhomAnotherAuthorityInvited) {
  serve("ours");
  const auto nodes = ask(machine("m2", "theirs", "ours"));
  ASSERT_FALSE(nodes);
  EXPECT_THAT(nodes.error().message, HasSubstr("does not take this machine's certificate"));
  // The server's side of it may end later.
  const TlsFiles good = machine("m3", "ours", "ours");
  for (int i = 0; i < 1000 && server_->handshakes_failed() == 0; ++i) EXPECT_TRUE(ask(good)) << "and goes on";
  EXPECT_EQ(server_->handshakes_failed(), 1u);
}

TEST_F(AuthorityTest, AMachineTalksToNoSwitchOfAnotherAuthority) {
  serve("theirs");
  const auto nodes = ask(machine("m2", "ours", "ours"));
  ASSERT_FALSE(nodes);
  EXPECT_THAT(nodes.error().message, HasSubstr("cannot show that it is the switch"));
}

TEST_F(AuthorityTest, NorToOneWhoseCertificateNamesAnotherAddress) {
  serve("ours", "192.0.2.1");
  const auto nodes = ask(machine("m2", "ours", "ours"));
  ASSERT_FALSE(nodes);
  EXPECT_THAT(nodes.error().message, HasSubstr("cannot show that it is the switch"));
}

TEST_F(AuthorityTest, AMachinesCertificateMakesNoSwitch) {
  authority("ours");
  const TlsFiles files = machine("m2", "ours", "ours");
  directory_ = *SqliteDirectory::open(":memory:", {}, [] { return Time(); });
  auto server = DirectoryServer::start(*directory_, {"127.0.0.1:0", files});
  ASSERT_TRUE(server) << server.error().message;
  server_ = std::move(*server);
  EXPECT_FALSE(ask(machine("m3", "ours", "ours")));
}

TEST_F(AuthorityTest, NeitherPlainHttpNorNoiseNorSilenceDisturbsIt) {
  serve("ours");
  EXPECT_FALSE(DirectoryClient({server_->address()}, Duration{}).nodes());
  const auto [host, port] = telemetry::HttpAddress{server_->address()}.host_and_port();
  for (const std::string& noise : {std::string(), std::string("\x16\x03\x01\xff\xff", 5), std::string(70'000, 'x')}) {
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    static_cast<void>(send(s, noise.data(), noise.size(), MSG_NOSIGNAL));
    close(s);
  }
  EXPECT_TRUE(ask(machine("m2", "ours", "ours")));
}

TEST_F(AuthorityTest, SaysWhatIsWrongWithFiles) {
  serve("ours");
  const TlsFiles good = machine("m2", "ours", "ours");
  const TlsFiles other = machine("m3", "ours", "ours");
  TlsFiles files = good;
  files.key = other.key;
  EXPECT_THAT(ask(files).error().message, HasSubstr("private key"));
  files = good;
  files.certificate = path("nowhere.pem");
  EXPECT_THAT(ask(files).error().message, HasSubstr("nowhere.pem"));
  ASSERT_TRUE(write_private_file(path("junk.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n"));
  files.certificate = path("junk.pem");
  EXPECT_THAT(ask(files).error().message, HasSubstr("no certificate in PEM"));
}

TEST_F(AuthorityTest, RefusesASecondOfItsKindAndSenselessHosts) {
  authority("ours");
  EXPECT_THAT(Authority::create(path("ours"), {"127.0.0.1"}).error().message, HasSubstr("has an authority already"));
  EXPECT_FALSE(Authority::create(path("new"), {}));
  for (const char* host : {"", "a b", "x,DNS:evil", "1.2.3.4/8", "999.0.0.1", "1.2.3"})
    EXPECT_FALSE(Authority::create(path("new"), {host})) << host;
  EXPECT_FALSE(Authority::is_there(path("new")));
  EXPECT_THAT(Authority::open(path("new")).error().message, HasSubstr("sluice rack init"));
}

TEST_F(AuthorityTest, KeepsItsSecretsToItself) {
  authority("ours");
  EXPECT_EQ(mode_of(path("ours")), 0700);
  for (const char* file : {"/authority.key", "/server.key"}) EXPECT_EQ(mode_of(path("ours") + file), 0600) << file;
}

TEST_F(AuthorityTest, APrivateFileReplacesNothingButAFile) {
  const auto text_of = [this](const std::string& name) { return read_whole_file(path(name)).value_or("unread"); };
  ASSERT_TRUE(write_private_file(path("token.new"), "a draft of somebody's"));
  ASSERT_TRUE(write_private_file(path("token"), "first"));
  std::filesystem::create_symlink(path("token"), path("link"));
  ASSERT_TRUE(write_private_file(path("link"), "second"));
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(text_of("token"), "second");
  EXPECT_EQ(mode_of(path("token")), 0600);
  EXPECT_EQ(text_of("token.new"), "a draft of somebody's");
  std::filesystem::create_symlink(path("later"), path("dangling"));
  ASSERT_TRUE(write_private_file(path("dangling"), "third"));
  EXPECT_EQ(text_of("later"), "third");
  std::filesystem::create_symlink(path("loop"), path("loop"));
  EXPECT_THAT(write_private_file(path("loop"), "x").error().message, HasSubstr("Too many levels"));

  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_TRUE(write_private_file(path("pipe"), "fourth"));
  std::array<char, 16> got{};
  EXPECT_EQ(read(reader, got.data(), got.size()), 6);
  EXPECT_STREQ(got.data(), "fourth");
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));

  std::filesystem::create_directory(path("folder"));
  EXPECT_THAT(write_private_file(path("folder"), "x").error().message, HasSubstr("Is a directory"));
  EXPECT_THAT(write_private_file(path("none/x"), "x").error().message, HasSubstr("No such file"));
  const auto files = std::filesystem::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 8) << "nothing is left beside them";
}

TEST_F(AuthorityTest, RefusesNamesThatAreNone) {
  const Authority ours = authority("ours");
  for (const std::string name : {"", "a b", "../x", ".x", "a/b"}) EXPECT_FALSE(ours.invite(name, 30)) << name;
  EXPECT_FALSE(ours.invite(std::string(64, 'a'), 30));
  EXPECT_FALSE(ours.invite("m2", 0));
  EXPECT_FALSE(ours.invite("m2", 100'000));
}

TEST_F(AuthorityTest, KnowsByWhichNamesMachinesReachTheSwitch) {
  ASSERT_TRUE(Authority::create(path("ours"), {"switch.example", "192.0.2.1", "2001:db8::1"}));
  for (const char* host : {"switch.example", "192.0.2.1", "2001:db8::1", "2001:db8:0::1"})
    EXPECT_TRUE(Authority::check_host(path("ours"), host)) << host;
  for (const char* host : {"192.0.2.2", "2001:db8::2", "example", "other.example", "switch.example.org"}) {
    const auto known = Authority::check_host(path("ours"), host);
    ASSERT_FALSE(known) << host;
    EXPECT_THAT(known.error().message, HasSubstr("names switch.example, 192.0.2.1, 2001:db8::1 only"));
  }
  EXPECT_FALSE(Authority::check_host(path("none"), "192.0.2.1"));
}

TEST_F(AuthorityTest, RevokesEveryInvitationOfAMachineAndNoOthers) {
  const Authority ours = authority("ours");
  const auto first = ours.invite("m-2", 30);
  const auto second = ours.invite("m-2", 30);
  const auto other = ours.invite("m", 30);
  EXPECT_NE(first->serial, second->serial);
  EXPECT_EQ(ours.revoke("m-2").value(), 2);
  EXPECT_TRUE(Authority::is_revoked(path("ours"), first->serial));
  EXPECT_TRUE(Authority::is_revoked(path("ours"), second->serial));
  EXPECT_FALSE(Authority::is_revoked(path("ours"), other->serial));
  // A list that is not there says of nobody that he counts.
  std::filesystem::rename(path("ours/revoked"), path("ours/away"));
  EXPECT_TRUE(Authority::is_revoked(path("ours"), other->serial));
  std::filesystem::rename(path("ours/away"), path("ours/revoked"));
  EXPECT_TRUE(Authority::is_still(path("ours"), ours.certificate()));
  std::filesystem::remove(path("ours/authority.pem"));
  EXPECT_FALSE(Authority::is_still(path("ours"), ours.certificate()));
  EXPECT_EQ(ours.revoke("m-2").value(), 0);
  EXPECT_THAT(ours.revoke("stranger").error().message, HasSubstr("no machine 'stranger' was invited"));
}

TEST_F(AuthorityTest, AnInvitationSurvivesItsTextAndDamageIsTold) {
  const Invitation invitation{"m2", "192.0.2.1:7472", "a\nb\n", "c\n", "d\n"};
  const auto again = parse_invitation(to_text(invitation));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->machine, "m2");
  EXPECT_EQ(again->authority, invitation.authority);
  EXPECT_THAT(parse_invitation("").error().message, HasSubstr("no invitation"));
  EXPECT_THAT(parse_invitation("{\"sluice_invitation\": 2}").error().message, HasSubstr("later version"));
  EXPECT_THAT(parse_invitation("{\"sluice_invitation\": 1, \"machine\": \"m2\"}").error().message,
              HasSubstr("'address'"));
  EXPECT_THAT(parse_invitation(to_text({"m2\nx", "a", "b", "c", "d"})).error().message, HasSubstr("two lines"));
}

TEST_F(AuthorityTest, JoiningTurnsARunDirectoryToTheRackThereAndLeavingBack) {
  const RunDirectory run(folder_);
  EXPECT_FALSE(run.is_joined());
  EXPECT_EQ(run.switch_port(), "shm:" + run.switch_socket());
  ASSERT_TRUE(join(run, {"m2", "192.0.2.1:7472", "a", "c", "k"}));
  EXPECT_TRUE(run.is_joined());
  EXPECT_EQ(run.machine(), "m2");
  EXPECT_EQ(run.switch_port(), "udp:192.0.2.1:7472");
  EXPECT_EQ(run.directory_address().text, "192.0.2.1:7472");
  EXPECT_EQ(mode_of(run.joined() + "/key.pem"), 0600);
  ASSERT_TRUE(join(run, {"m3", "192.0.2.2:7472", "a", "c", "k"}));
  EXPECT_EQ(run.machine(), "m3");
  go_back(run);
  EXPECT_EQ(run.machine(), "m2") << "as when the other rack does not answer";
  ASSERT_TRUE(join(run, {"m4", "192.0.2.3:7472", "a", "c", "k"}));  // and is killed
  ASSERT_TRUE(join(run, {"m3", "192.0.2.2:7472", "a", "c", "k"}));
  go_back(run);
  EXPECT_EQ(run.machine(), "m2");
  ASSERT_TRUE(join(run, {"m2", "192.0.2.1:7472", "a", "c", "k"}));
  keep_joined(run);
  run.clear();
  EXPECT_TRUE(run.is_joined()) << "a rack that goes down forgets nothing of it";
  EXPECT_TRUE(leave(run).value());
  EXPECT_FALSE(run.is_joined());
  EXPECT_FALSE(leave(run).value());
}

TEST(MachineGate, AdmitsWhoWasSeenOfLate) {
  MachineGate gate;
  const Time start = Time::at(Duration::seconds(100));
  EXPECT_FALSE(gate.admits(start, "192.0.2.1"));
  gate.seen(start, "192.0.2.1");
  EXPECT_TRUE(gate.admits(start + MachineGate::kCounts - Duration::nanoseconds(1), "192.0.2.1"));
  EXPECT_FALSE(gate.admits(start + MachineGate::kCounts, "192.0.2.1"));
  EXPECT_FALSE(gate.admits(start, "192.0.2.2"));
  gate.forget("192.0.2.1");
  EXPECT_FALSE(gate.admits(start, "192.0.2.1"));
}

}  // namespace
}  // namespace sluice::rack
