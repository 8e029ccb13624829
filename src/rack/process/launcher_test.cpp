#include "rack/process/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>

#include "ports/unix_socket.h"
#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

using testing::HasSubstr;
using testing::Not;

// Says that it is ready, then lives until it is told to end.
const std::string kGood = "echo ready >&$SLUICE_READY_DESCRIPTOR; exec sleep 1000";
// The same, and what it was started with stays to be seen.
const std::string kStaying = "echo ready >&$SLUICE_READY_DESCRIPTOR; exec 9<> <(:); read -t 1000 -u 9";
// The first one, but deaf to SIGTERM.
const std::string kStubborn = "trap '' TERM; echo ready >&$SLUICE_READY_DESCRIPTOR; exec sleep 1000";
const std::string kDying = "echo 'first line'; echo 'no such port: potato' >&2; exit 3";
// As a metadata server's begins.
const std::string kJournal = std::string("\x0c\0\0\0", 4) + "{\"homes\":[]}";
const std::string kSilent = "echo 'still thinking'; exec sleep 1000";

class LauncherTest : public testing::Test {
 protected:
  LauncherTest() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    launcher_ = std::make_unique<Launcher>(RunDirectory(folder_ + "/run"),
                                           [this](const std::string& line) { progress_ += line + "\n"; });
  }
  ~LauncherTest() override {
    static_cast<void>(launcher_->down(Duration{}));
    std::filesystem::remove_all(folder_);
  }
  static DaemonSpec daemon(const std::string& name, const std::string& script, int stage = 0) {
    return {name, {"/bin/bash", "-c", script}, stage};
  }
  std::vector<DaemonStatus> status() { return launcher_->status().value(); }
  ProcessRecord process(const std::string& name) {
    for (const DaemonStatus& d : status()) {
      if (d.name == name) return d.process;
    }
    ADD_FAILURE() << name << " has no pid file";
    return {};
  }

  std::string folder_;
  std::string progress_;
  std::unique_ptr<Launcher> launcher_;
};

TEST_F(LauncherTest, SaysWhenTheSettingsFileHasChangedSinceADaemonStarted) {
  DaemonSpec spec = daemon("a", kStaying);
  spec.config = folder_ + "/rack.toml";
  std::ofstream(spec.config) << "[switch]\n";
  ASSERT_TRUE(launcher_->up({spec}));
  ASSERT_TRUE(launcher_->up({spec}));
  std::ofstream(spec.config) << "[switch]\nbox = \"clover\"\n";
  EXPECT_EQ(launcher_->up({spec}).error().message,
            "a runs with other options (the settings file has changed since); `sluice rack down` first");
}

TEST_F(LauncherTest, SaysWhichOptionsDifferFromThoseThatADaemonRunsWith) {
  const auto with = [](const std::string& name, const std::vector<std::string>& flags) {
    DaemonSpec spec = daemon(name, kStaying);
    spec.argv.insert(spec.argv.end(), flags.begin(), flags.end());
    return spec;
  };
  ASSERT_TRUE(launcher_->up({with("a", {"--box", "watch", "--edm"}), with("b", {"--size", "1"}),
                             with("c", {"--size", "1"}), with("d", {"--http", "x"})}));
  const auto why = [&](const std::vector<DaemonSpec>& asked) { return launcher_->up(asked).error().message; };
  EXPECT_EQ(why({with("a", {"--box", "clover", "--cowbird"})}),
            "a runs with other options (--box watch instead of clover, --edm, no --cowbird); `sluice rack down` first");
  EXPECT_EQ(why({with("b", {"--size", "2"}), with("c", {"--size", "2"})}),
            "b, c run with other options (--size 1 instead of 2); `sluice rack down` first");
  EXPECT_EQ(why({with("b", {"--size", "2"}), with("c", {"--size", "2"}), with("d", {"--port", "y"})}),
            "b, c, d run with other options (b, c: --size 1 instead of 2; d: --http x instead of none, no --port y); "
            "`sluice rack down` first");
}

TEST_F(LauncherTest, WritesDownItsSettingsWhereAFullDiskHasLeftNothingOfThem) {
  DaemonSpec spec = daemon("a", kStaying);
  spec.config = folder_ + "/rack.toml";
  std::ofstream(spec.config) << "[switch]\n";
  ASSERT_TRUE(launcher_->up({daemon("other", kStaying)}));  // so that nothing is cleared
  std::ofstream(launcher_->directory().settings_copy("a")) << "";
  ASSERT_TRUE(launcher_->up({spec}));
  EXPECT_EQ(read_whole_file(launcher_->directory().settings_copy("a")).value_or(""),
            std::string(kSettingsHead) + "[switch]\n");
}

TEST_F(LauncherTest, StartsAllAndEndsAll) {
  ASSERT_TRUE(launcher_->up({daemon("a", kGood), daemon("b", kGood, 1)}));
  const ProcessRecord a = process("a");
  const ProcessRecord b = process("b");
  EXPECT_TRUE(alive(a));
  EXPECT_TRUE(alive(b));
  const auto ended = launcher_->down();
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(*ended, 2u);
  EXPECT_FALSE(alive(a));
  EXPECT_FALSE(alive(b));
  EXPECT_TRUE(launcher_->status()->empty());
  EXPECT_LT(progress_.find("b has ended"), progress_.find("a has ended")) << "in reverse order";
}

TEST_F(LauncherTest, UpTwiceAndDownTwiceChangeNothing) {
  ASSERT_TRUE(launcher_->up({daemon("a", kStaying)}));
  const ProcessRecord first = process("a");
  ASSERT_TRUE(launcher_->up({daemon("a", kStaying)}));
  EXPECT_EQ(process("a"), first);
  EXPECT_THAT(progress_, HasSubstr("a is running already"));
  EXPECT_EQ(launcher_->down().value(), 1u);
  EXPECT_EQ(launcher_->down().value(), 0u);
}

TEST_F(LauncherTest, StartsNothingWhereADaemonRunsWithOtherOptions) {
  ASSERT_TRUE(launcher_->up({daemon("a", kStaying), daemon("b", kStaying)}));
  const ProcessRecord first = process("a");
  const auto one = launcher_->up({daemon("a", kGood), daemon("b", kStaying), daemon("c", kGood)});
  ASSERT_FALSE(one);
  EXPECT_EQ(one.error().message, "a runs with other options; `sluice rack down` first");
  EXPECT_EQ(process("a"), first);
  EXPECT_EQ(status().size(), 2u);
  EXPECT_EQ(launcher_->up({daemon("a", kGood), daemon("b", kGood)}).error().message,
            "a, b run with other options; `sluice rack down` first");
}

TEST_F(LauncherTest, DownWithoutAnyRackIsFine) {
  EXPECT_EQ(Launcher(RunDirectory(folder_ + "/none"), [](auto&) {}).down().value(), 0u);
}

TEST_F(LauncherTest, UpRestartsOnlyTheOneThatDied) {
  const std::vector<DaemonSpec> both{daemon("a", kStaying), daemon("b", kStaying)};
  ASSERT_TRUE(launcher_->up(both));
  const ProcessRecord a = process("a");
  const ProcessRecord b = process("b");
  ASSERT_TRUE(end_process(b, Duration{}));
  for (const DaemonStatus& d : status()) EXPECT_EQ(d.running, d.name == "a");
  ASSERT_TRUE(launcher_->up(both));
  EXPECT_EQ(process("a"), a);
  EXPECT_NE(process("b"), b);
}

TEST_F(LauncherTest, SaysWhatIsLostWithOneThatDiedInARackThatGoesOn) {
  DaemonSpec b = daemon("b", kStaying);
  b.dies_with_it = "all of it";
  const std::vector<DaemonSpec> both{daemon("a", kStaying), b};
  ASSERT_TRUE(launcher_->up(both));
  for (const char* name : {"a", "b"}) ASSERT_TRUE(end_process(process(name), Duration{}));
  ASSERT_TRUE(launcher_->up(both));
  EXPECT_THAT(progress_, Not(HasSubstr("anew"))) << "nothing of that rack was there any more";
  ASSERT_TRUE(end_process(process("a"), Duration{}));
  ASSERT_TRUE(launcher_->up(both));
  EXPECT_THAT(progress_, Not(HasSubstr("anew")));
  ASSERT_TRUE(end_process(process("b"), Duration{}));
  ASSERT_TRUE(launcher_->up(both));
  EXPECT_THAT(progress_, HasSubstr("b was started anew: all of it"));
}

TEST_F(LauncherTest, ADaemonThatDiesAtItsStartIsToldWithItsLogAndTheOthersEnd) {
  const auto up = launcher_->up({daemon("a", kGood), daemon("b", kDying, 1)});
  ASSERT_FALSE(up);
  EXPECT_THAT(up.error().message, HasSubstr("b ended while starting"));
  EXPECT_THAT(up.error().message, HasSubstr("no such port: potato"));
  for (const DaemonStatus& d : status()) EXPECT_FALSE(d.running) << d.name;
  // And with no line of an earlier start.
  const auto again = launcher_->up({daemon("b", "echo 'no such port: carrot'; exit 3")});
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("carrot"));
  EXPECT_THAT(again.error().message, Not(HasSubstr("potato")));
}

TEST_F(LauncherTest, ADaemonThatIsNeverReadyIsToldAndEnded) {
  const auto up = launcher_->up({daemon("a", kSilent)}, Duration::milliseconds(300));
  ASSERT_FALSE(up);
  EXPECT_THAT(up.error().message, HasSubstr("a was not ready"));
  EXPECT_THAT(up.error().message, HasSubstr("still thinking"));
  EXPECT_TRUE(launcher_->status()->empty());
}

TEST_F(LauncherTest, AProgramThatCannotBeStartedIsTold) {
  const auto up = launcher_->up({{"a", {"/no/such/program"}, 0}});
  ASSERT_FALSE(up);
  EXPECT_THAT(up.error().message, HasSubstr("/no/such/program"));
}

TEST_F(LauncherTest, KillsWhatDoesNotEnd) {
  ASSERT_TRUE(launcher_->up({daemon("a", kStubborn)}));
  const ProcessRecord a = process("a");
  EXPECT_TRUE(launcher_->down(Duration::milliseconds(50)));
  EXPECT_FALSE(alive(a));
}

TEST_F(LauncherTest, WhatShallNotOutliveOneThatIsKilledEndsWithIt) {
  int up[2];
  ASSERT_EQ(pipe(up), 0);
  const pid_t starter = fork();
  if (starter == 0) {
    close(up[0]);
    Launcher launcher(
        launcher_->directory(), [](const std::string&) {}, -1, Lifetime::kOurs);
    const bool all_well = launcher.up({daemon("a", kGood)}).has_value();
    if (all_well && write(up[1], "", 1) == 1) pause();
    _exit(1);
  }
  close(up[1]);
  char byte = 0;
  EXPECT_EQ(read(up[0], &byte, 1), 1);
  close(up[0]);
  const pid_t a = process("a").pid;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, a, 0));
  ASSERT_GE(pidfd, 0);
  pollfd ended{pidfd, POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 0), 0) << "it lives as long as its starter does";
  kill(starter, SIGKILL);
  waitpid(starter, nullptr, 0);
  EXPECT_EQ(poll(&ended, 1, 10'000), 1);
  close(pidfd);
}

TEST_F(LauncherTest, LeavesAStrangerAloneThatHasThePidOfADeadDaemon) {
  const pid_t stranger = fork();
  if (stranger == 0) {
    execl("/bin/sleep", "sleep", "1000", nullptr);
    _exit(127);
  }
  ASSERT_TRUE(launcher_->directory().prepare());
  ProcessRecord recorded = find_process(stranger).value();
  recorded.start_ticks -= 1;  // an older process that had this pid
  ASSERT_TRUE(write_pid_file(launcher_->directory().pid_file("a"), recorded));
  EXPECT_FALSE(launcher_->status()->at(0).running);
  EXPECT_EQ(launcher_->down().value(), 0u);
  EXPECT_TRUE(find_process(stranger)) << "it must still live";
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
}

TEST_F(LauncherTest, CleansUpBehindARackThatWasKilled) {
  ASSERT_TRUE(launcher_->up({daemon("a", kGood)}));
  std::ofstream(launcher_->directory().directory_state()) << "SQLite format 3 and so on";
  const std::string run = launcher_->directory().path();
  const std::vector<std::string> sockets{launcher_->directory().switch_socket(), run + "/box-0.sock",
                                         run + "/box-11.sock"};
  for (const std::string& socket : sockets) ports::listen_unix(socket)->close();
  std::ofstream(run + "/host-a.settings") << kSettingsHead << "[switch]\n";
  std::ofstream(run + "/c.settings") << "";  // the disk was full
  ASSERT_TRUE(end_process(process("a"), Duration{}));
  ASSERT_TRUE(launcher_->up({daemon("b", kGood)}));
  EXPECT_FALSE(std::filesystem::exists(launcher_->directory().directory_state()));
  for (const std::string& socket : sockets) EXPECT_FALSE(std::filesystem::exists(socket)) << socket;
  EXPECT_FALSE(std::filesystem::exists(run + "/host-a.settings"));
  EXPECT_FALSE(std::filesystem::exists(run + "/c.settings"));
  EXPECT_EQ(launcher_->status()->size(), 1u) << "the pid file of the dead one is gone";
}

TEST_F(LauncherTest, ADaemonThatCannotBeRecordedNeverBegins) {
  const std::string name(251, 'a');  // with ".log" a file may be called so, with ".pid.new" not
  const std::string trace = folder_ + "/trace";
  const auto up = launcher_->up({daemon(name, "echo $$ > " + trace + "; " + kGood)}, Duration::seconds(10));
  ASSERT_FALSE(up);
  EXPECT_THAT(up.error().message, HasSubstr("cannot write"));
  EXPECT_FALSE(std::filesystem::exists(trace)) << "nobody could ever end it";
}

TEST_F(LauncherTest, APidFileThatCannotBeWrittenLeavesNoDraft) {
  std::filesystem::create_directory(folder_ + "/a.pid");  // in its place
  EXPECT_FALSE(write_pid_file(folder_ + "/a.pid", {1, 1}));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/a.pid.new"));
}

TEST_F(LauncherTest, LeavesAloneWhatALivingProcessOfSomebodyElsesHasThere) {
  const RunDirectory& run = launcher_->directory();
  ASSERT_TRUE(run.prepare());
  auto directory = ports::listen_unix(run.directory_socket());
  auto cowbird = ports::listen_unix(run.cowbird_socket(), ports::UnixKind::kMessages);
  ASSERT_TRUE(directory && cowbird);
  ports::Descriptor held(open(run.lease_file("memory1").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(held.get(), LOCK_EX), 0);
  const std::map<std::string, std::string> files{{run.directory_state(), "SQLite format 3 and so on"},
                                                 {run.lease_file("memory1"), "123\n"},
                                                 {run.journal("memory1"), kJournal},
                                                 {run.journal("memory1") + ".lost", kJournal},
                                                 {run.lease_file("memory2"), "0\n"},
                                                 {run.journal("memory2"), kJournal},
                                                 {run.journal("memory2") + ".lost", kJournal}};
  for (const auto& [file, text] : files) std::ofstream(file) << text;
  ports::listen_unix(run.switch_socket())->close();
  const std::vector<std::string> theirs{run.directory_socket(), run.cowbird_socket(),
                                        run.directory_state(),  run.lease_file("memory1"),
                                        run.journal("memory1"), run.journal("memory1") + ".lost"};
  const std::vector<std::string> left_over{run.switch_socket(), run.lease_file("memory2"), run.journal("memory2"),
                                           run.journal("memory2") + ".lost"};
  EXPECT_EQ(launcher_->down().value(), 0u);
  EXPECT_THAT(progress_, HasSubstr("end it as it was started"));
  ASSERT_TRUE(launcher_->up({daemon("a", kGood)}));
  for (const std::string& file : theirs) EXPECT_TRUE(std::filesystem::exists(file)) << file;
  for (const std::string& file : left_over) EXPECT_FALSE(std::filesystem::exists(file)) << file;
  directory->close();
  cowbird->close();
  held.close();
  EXPECT_EQ(launcher_->down().value(), 1u);
  for (const std::string& file : theirs) EXPECT_FALSE(std::filesystem::exists(file)) << file;
}

TEST_F(LauncherTest, LeavesAloneWhatIsNotARacksWhateverItIsCalled) {
  const RunDirectory& run = launcher_->directory();
  ASSERT_TRUE(run.prepare());
  const std::vector<std::string> names{"my.pid",          "app.config",  "a.settings",       "db.journal",
                                       "db.journal.lost", "build.lease", "switch.lease",     "draft.new",
                                       "my.pid.new",      "app.sock",    "directory.sqlite", "host-tools/notes.txt",
                                       "host-x/users",    "host-x/mine"};
  for (const char* const folder : {"/host-tools", "/host-x", "/host-empty"})
    std::filesystem::create_directory(run.path() + folder);
  const std::string precious = "17 is all there is to say, {\"homes\":[]}";
  for (const std::string& name : names) std::ofstream(run.path() + "/" + name) << precious;
  DaemonSpec spec = daemon("a", kGood);
  spec.config = folder_ + "/rack.toml";
  std::ofstream(spec.config) << "[switch]\n";
  ASSERT_TRUE(launcher_->up({spec}));
  EXPECT_EQ(launcher_->status()->size(), 1u) << "no daemon of ours is called my";
  EXPECT_EQ(launcher_->down().value(), 1u);
  EXPECT_TRUE(std::filesystem::exists(run.path() + "/host-empty"));
  for (const std::string& name : names)
    EXPECT_EQ(read_whole_file(run.path() + "/" + name).value_or("nothing"), precious) << name;
}

TEST_F(LauncherTest, ARunDirectoryThatCannotBeReadIsNotEmpty) {
  EXPECT_TRUE(Launcher(RunDirectory(folder_ + "/none"), [](auto&) {}).status()->empty());
  std::ofstream(folder_ + "/file") << "x";
  const auto status = Launcher(RunDirectory(folder_ + "/file"), [](auto&) {}).status();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("/file: Not a directory"));
}

TEST_F(LauncherTest, TwoLaunchersDoNotMix) {
  ASSERT_TRUE(launcher_->directory().prepare());
  const auto lock = RunLock::take(launcher_->directory());
  ASSERT_TRUE(lock);
  const auto up = launcher_->up({daemon("a", kGood)});
  ASSERT_FALSE(up);
  EXPECT_THAT(up.error().message, HasSubstr("another `sluice rack` command"));
}

TEST_F(LauncherTest, OneSwitchLivesInARunDirectory) {
  ASSERT_TRUE(launcher_->directory().prepare());
  {
    const auto first = RunLock::of_switch(launcher_->directory());
    ASSERT_TRUE(first);
    const auto second = RunLock::of_switch(launcher_->directory());
    ASSERT_FALSE(second);
    EXPECT_THAT(second.error().message, HasSubstr("is this rack up already?"));
  }
  EXPECT_TRUE(RunLock::of_switch(launcher_->directory()));
}

// Of this process, to this file.
std::size_t descriptors_of(const std::string& file) {
  std::size_t all = 0;
  std::error_code closed_meanwhile;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    if (std::filesystem::read_symlink(entry.path(), closed_meanwhile) == file) ++all;
  }
  return all;
}

TEST_F(LauncherTest, ALockOnAFileThatWasRemovedMeanwhileIsNone) {
  const RunDirectory& run = launcher_->directory();
  ASSERT_TRUE(run.prepare());
  const std::string file = std::filesystem::canonical(run.path()).string() + "/switch.lease";
  ports::Descriptor cleaner(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(cleaner.get(), LOCK_EX), 0);
  auto comes = std::async(std::launch::async, [&] { return RunLock::of_switch(run); });
  while (descriptors_of(file) != 2 && comes.wait_for(std::chrono::milliseconds(0)) != std::future_status::ready) {
  }
  ASSERT_TRUE(std::filesystem::remove(file));
  cleaner.close();
  const auto first = comes.get();
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_FALSE(RunLock::of_switch(run)) << "two switches in one run directory";
}

TEST_F(LauncherTest, LeavesTheStateOfASwitchAloneThatDoesNotListenYet) {
  const RunDirectory& run = launcher_->directory();
  ASSERT_TRUE(run.prepare());
  {
    const auto starting = RunLock::of_switch(run);
    std::ofstream(run.directory_state()) << "SQLite format 3 and so on";
    ASSERT_TRUE(launcher_->up({daemon("a", kGood)}));
    EXPECT_TRUE(std::filesystem::exists(run.directory_state()));
    EXPECT_EQ(launcher_->down().value(), 1u);
    EXPECT_TRUE(std::filesystem::exists(run.directory_state()));
  }
  EXPECT_EQ(launcher_->down().value(), 0u);
  EXPECT_FALSE(std::filesystem::exists(run.directory_state()));
}

TEST_F(LauncherTest, RefusesARunDirectoryThatIsNotOurs) {
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_THAT(RunDirectory(folder_ + "/file").prepare().error().message, HasSubstr("must be a directory of your own"));
  EXPECT_THAT(RunDirectory("/proc/1/none").prepare().error().message, HasSubstr("choose a directory"));
  EXPECT_THAT(RunDirectory("/tmp/" + std::string(100, 'a')).prepare().error().message, HasSubstr("at most 80 bytes"));
  EXPECT_THAT(RunDirectory(folder_ + "/a,b").prepare().error().message, HasSubstr("must have no comma"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/a,b"));
}

TEST_F(LauncherTest, KeepsTheModeOfADirectoryThatWasThere) {
  const RunDirectory run(folder_ + "/mode");
  const auto mode = [&] { return static_cast<unsigned>(std::filesystem::status(run.path()).permissions()); };
  ASSERT_TRUE(run.prepare());
  EXPECT_EQ(mode(), 0700u);
  ASSERT_EQ(chmod(run.path().c_str(), 0755), 0);
  const mode_t before = umask(0022);
  EXPECT_TRUE(run.prepare());
  run.shield();
  EXPECT_EQ(umask(before), 0077u) << "what is made there is ours alone";
  EXPECT_EQ(mode(), 0755u);
  for (const mode_t open_to : {0775u, 0757u, 01777u}) {
    ASSERT_EQ(chmod(run.path().c_str(), open_to), 0);
    EXPECT_THAT(run.prepare().error().message, HasSubstr("others may write to it"));
    EXPECT_EQ(mode(), open_to);
  }
}

TEST(RunDirectory, IsWhereSluiceDirSaysUnlessToldOtherwise) {
  const char* const before = std::getenv("SLUICE_DIR");
  const std::string kept = before == nullptr ? "" : before;
  setenv("SLUICE_DIR", "/srv/rack", 1);
  EXPECT_EQ(RunDirectory::default_path(), "/srv/rack");
  setenv("SLUICE_DIR", "", 1);
  EXPECT_THAT(RunDirectory::default_path(), HasSubstr("/sluice"));
  before == nullptr ? unsetenv("SLUICE_DIR") : setenv("SLUICE_DIR", kept.c_str(), 1);
}

TEST(Process, TellsItsOwnUsage) {
  const auto self = find_process(getpid());
  ASSERT_TRUE(self);
  const auto usage = usage_of(*self);
  ASSERT_TRUE(usage);
  EXPECT_GT(usage->resident_bytes, 1u << 20);
  EXPECT_LT(usage->age, Duration::seconds(3600));
  EXPECT_GE(usage->age, Duration{});
}

TEST(Process, KeepsTheLastLinesOfALog) { EXPECT_EQ(last_lines("/no/such/file", 3), "  (nothing)"); }

}  // namespace
}  // namespace sluice::rack
