#include "rack/settings/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rack/settings/config.h"

namespace sluice::rack {
namespace {

using testing::HasSubstr;

struct Settings {
  std::string name = "memory1";
  std::uint64_t size = std::uint64_t{16} << 30;
  std::uint64_t count = 2;
  double theta = 0.99;
  Duration lease = Duration::seconds(3);
  std::string port = "shm";
  bool verbose = false;
  std::vector<std::string> ports{"a"};
  wire::Ipv4Address subnet{0x0A4D0000};
  Schema schema;

  Settings() {
    schema.text("name", name, "name")
        .bytes("size", size, 4096, std::uint64_t{1} << 44, "size")
        .integer("count", count, 1, 64, "count")
        .number("theta", theta, 0, 1, "theta")
        .duration("lease", lease, Duration::milliseconds(100), Duration::seconds(60), "lease")
        .choice("port", port, {"shm", "udp"}, "port", "wire:INTERFACE")
        .toggle("verbose", verbose, "verbose")
        .list("ports", ports, "ports", "a list of ports")
        .ipv4("subnet", subnet, "subnet");
  }
  Result<void> parse(std::string_view text) {
    Settings other;
    return parse_toml(text, "rack.toml", {{"memory", &schema}, {"rack", &other.schema}});
  }
  std::string error(std::string_view text) {
    const auto result = parse(text);
    EXPECT_FALSE(result) << text;
    return result ? "" : result.error().message;
  }
};

TEST(Schema, AnHttpAddressHasAHostAndAPort) {
  std::string http;
  Schema schema;
  schema.http("http", http, "where");
  const auto takes = [&](std::string_view value) {
    return Schema::set(*schema.find("http"), value, "--http").has_value();
  };
  for (const char* const good : {"", "127.0.0.1:0", "localhost:65535", "[::1]:80", "/run/rack.sock"})
    EXPECT_TRUE(takes(good)) << good;
  for (const char* const bad : {"127.0.0.1", "localhost", ":80", "a:", "a:99999", "a:b", "::1:80", "[]:80"})
    EXPECT_FALSE(takes(bad)) << bad;
}

TEST(SwitchSettings, EdmGrantsWhatHasTheLeastLeftFirstUnlessToldAnotherOrder) {
  SwitchSettings settings;
  Schema schema;
  settings.declare(schema);
  EXPECT_EQ(settings.edm_policy, "srpt");
  ASSERT_TRUE(parse_toml("[switch]\nedm-policy = \"fcfs\"", "rack.toml", {{"switch", &schema}}));
  EXPECT_EQ(settings.edm_policy, "fcfs");
  EXPECT_EQ(Schema::set(*schema.find("edm-policy"), "lifo", "--edm-policy").error().message,
            "--edm-policy = \"lifo\": must be one of srpt, fcfs");
}

TEST(Schema, APathIsNotEmpty) {
  std::string out = "results";
  Schema schema;
  schema.path("out", out, "where", "a folder's path");
  EXPECT_TRUE(Schema::set(*schema.find("out"), "mine", "--out"));
  EXPECT_EQ(out, "mine");
  EXPECT_EQ(Schema::set(*schema.find("out"), "", "--out").error().message, "--out = \"\": must be a folder's path");
}

TEST(Schema, APathInAFileBeginsAtThatFile) {
  std::string file;
  std::string folder;
  Schema schema;
  schema.text("tenants", file, "", kFilePath).text("tls", folder, "", kFolderPath);
  ASSERT_TRUE(parse_toml("[switch]\ntenants = \"ten.json\"\ntls = \"/etc/tls\"", "/etc/sluice/rack.toml",
                         {{"switch", &schema}}));
  EXPECT_EQ(file, "/etc/sluice/ten.json");
  EXPECT_EQ(folder, "/etc/tls");
  ASSERT_TRUE(parse_toml("[switch]\ntenants = \"\"", "/etc/sluice/rack.toml", {{"switch", &schema}}));
  EXPECT_EQ(file, "") << "there is none";
  ASSERT_TRUE(Schema::set(*schema.find("tenants"), "ten.json", "--tenants"));
  EXPECT_EQ(file, "ten.json") << "a flag is where one is";
}

TEST(Schema, SetsEveryKindOfValueFromToml) {
  Settings s;
  const auto done = s.parse(R"(
    [memory]
    name = "m"
    size = "64MiB"
    count = 3
    theta = 0.5
    lease = "500ms"
    port = "udp"
    verbose = true
    ports = ["x", "y"]
    subnet = "10.1.0.0"
  )");
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(s.name, "m");
  EXPECT_EQ(s.size, 64u << 20);
  EXPECT_EQ(s.count, 3u);
  EXPECT_EQ(s.theta, 0.5);
  EXPECT_EQ(s.lease, Duration::milliseconds(500));
  EXPECT_EQ(s.port, "udp");
  EXPECT_TRUE(s.verbose);
  EXPECT_EQ(s.ports, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(s.subnet.to_string(), "10.1.0.0");
}

TEST(Schema, NamesFileLineKeyValueAndWhatIsAllowed) {
  Settings s;
  EXPECT_EQ(s.error("[memory]\ncount = 99"),
            "rack.toml: line 2: [memory] count = \"99\": must be a whole number from 1 to 64");
  EXPECT_EQ(s.error("[memory]\n\nport = 'rdma'"),
            "rack.toml: line 3: [memory] port = \"rdma\": must be one of shm, udp, wire:INTERFACE");
  EXPECT_EQ(s.error("[memory]\nsize = '16 potatoes'"),
            "rack.toml: line 2: [memory] size = \"16 potatoes\": must be a size from 4KiB to 16TiB, such as 64KiB");
  EXPECT_EQ(s.error("[memory]\nlease = 3"),
            "rack.toml: line 2: [memory] lease = \"3\": must be a time from 100ms to 60s, such as 500ms or 3s");
  EXPECT_THAT(s.error("[memory]\ntheta = 'x'"), HasSubstr("must be a number from 0 to 1"));
  EXPECT_THAT(s.error("[memory]\nverbose = 'maybe'"), HasSubstr("must be true or false"));
  EXPECT_THAT(s.error("[memory]\nsubnet = '10.1'"), HasSubstr("must be an IPv4 address"));
  EXPECT_THAT(s.error("[memory]\ncount = [1, 2]"), HasSubstr("must be a whole number"));
  EXPECT_THAT(s.error("[memory]\ncount = {a = 1}"), HasSubstr("must be a whole number"));
}

TEST(Schema, RejectsUnknownKeysAndTablesAndNamesTheKnownOnes) {
  Settings s;
  EXPECT_EQ(s.error("[memory]\nsiez = 1"),
            "rack.toml: line 2: [memory] siez = \"1\": unknown key; did you mean `size`?");
  EXPECT_EQ(s.error("[memory]\ncolour = 1"),
            "rack.toml: line 2: [memory] colour = \"1\": unknown key; [memory] has name, size, count, theta, lease, "
            "port, verbose, ports, subnet");
  EXPECT_EQ(s.error("[rak]\nsize = 1"), "rack.toml: line 1: [rak]: unknown table; did you mean `[rack]`?");
  EXPECT_EQ(s.error("[colours]\nsize = 1"), "rack.toml: line 1: [colours]: unknown table; there are memory, rack");
  EXPECT_EQ(s.error("size = 1"), "rack.toml: line 1: size = \"1\": stands in no [table]; there are memory, rack");
  EXPECT_THAT(s.error("[rack]\nnonsense = 1"), HasSubstr("line 2: [rack] nonsense"))
      << "also in a table of another command";
}

TEST(Schema, SaysInOneLineWhereTomlIsBroken) {
  Settings s;
  const std::string message = s.error("[memory]\nsize = \n");
  EXPECT_THAT(message, HasSubstr("rack.toml: line 2: no valid TOML"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(Schema, SaysThatSizesAndTimesAreInQuotes) {
  Settings s;
  EXPECT_THAT(s.error("[memory]\nsize = 1GiB\ncount = 3"), HasSubstr("in quotes: \"1GiB\""));
  EXPECT_THAT(s.error("[memory]\ncount = 3\nlease=500ms # soon"), HasSubstr("in quotes: \"500ms\""));
  EXPECT_THAT(s.error("[memory]\nlease = 3s"), HasSubstr("in quotes: \"3s\""));
  EXPECT_THAT(s.error("[memory]\nport = shm"), testing::Not(HasSubstr("in quotes")));
  EXPECT_THAT(s.error("[memory\nsize = 1"), testing::Not(HasSubstr("in quotes")));
}

TEST(Schema, GivesExamplesThatAreAllowed) {
  Schema schema;
  Duration time;
  std::uint64_t size = 0;
  schema.duration("start", time, Duration::seconds(1), Duration::seconds(600), "")
      .duration("probe", time, Duration::microseconds(1), Duration::milliseconds(1), "")
      .bytes("page", size, 4096, 8192, "");
  EXPECT_EQ(schema.find("start")->allowed, "a time from 1s to 600s, such as 3s");
  EXPECT_EQ(schema.find("probe")->allowed, "a time from 1us to 1ms");
  EXPECT_EQ(schema.find("page")->allowed, "a size from 4KiB to 8KiB");
}

TEST(Schema, ASizeMayBe0WhereThatStandsForAnother) {
  Schema schema;
  std::uint64_t size = 7;
  schema.bytes_or_0("size", size, 4096, 1 << 20, "");
  const auto takes = [&](std::string_view value) {
    return Schema::set(*schema.find("size"), value, "--size").has_value();
  };
  EXPECT_TRUE(takes("0"));
  EXPECT_EQ(size, 0u);
  EXPECT_TRUE(takes("4KiB"));
  EXPECT_FALSE(takes("1"));
  EXPECT_FALSE(takes("2MiB"));
  EXPECT_EQ(size, 4096u);
}

TEST(Schema, SetsEachTableByItself) {
  Settings s;
  ASSERT_TRUE(s.parse("[rack]\ncount = 5\n[memory]\nname = 'x'"));
  EXPECT_EQ(s.count, 2u);
  EXPECT_EQ(s.name, "x");
}

TEST(Schema, SaysThatTheFileIsNotThere) {
  const auto loaded = load_toml("/no/such/file.toml", {});
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, HasSubstr("--config: cannot read /no/such/file.toml: No such file"));
  const auto folder = load_toml("/proc/self", {});
  ASSERT_FALSE(folder) << "no file, though it can be opened";
  EXPECT_THAT(folder.error().message, HasSubstr("give the path of a TOML file"));
  const auto endless = load_toml("/dev/zero", {});
  ASSERT_FALSE(endless);
  EXPECT_THAT(endless.error().message, HasSubstr("cannot read /dev/zero: it has more than 64MiB"));
}

TEST(Schema, ReadsSizes) {
  const std::pair<const char*, std::uint64_t> good[] = {{"0", 0},
                                                        {"4096", 4096},
                                                        {"64k", 65536},
                                                        {"64KiB", 65536},
                                                        {"1B", 1},
                                                        {"2MB", 2u << 20},
                                                        {"16GiB", std::uint64_t{16} << 30},
                                                        {"3T", std::uint64_t{3} << 40}};
  for (const auto& [text, bytes] : good) {
    std::uint64_t out = 1;
    EXPECT_TRUE(parse_bytes(text, out)) << text;
    EXPECT_EQ(out, bytes) << text;
  }
  for (const char* bad : {"", "GiB", "-1", "1.5G", "1 G", "1X", "1GiBs", "99999999999999999999", "99999999T"}) {
    std::uint64_t out = 0;
    EXPECT_FALSE(parse_bytes(bad, out)) << bad;
  }
}

TEST(Schema, ReadsDurations) {
  Duration d;
  EXPECT_TRUE(parse_duration("20us", d));
  EXPECT_EQ(d, Duration::microseconds(20));
  EXPECT_TRUE(parse_duration("2min", d));
  EXPECT_EQ(d, Duration::seconds(120));
  for (const char* bad : {"", "3", "s", "-3s", "3 s", "3h", "99999999999999s"})
    EXPECT_FALSE(parse_duration(bad, d)) << bad;
}

TEST(Schema, WritesSizesAndDurationsAsTheyAreRead) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1536}, std::uint64_t{16} << 30}) {
    std::uint64_t out = 99;
    EXPECT_TRUE(parse_bytes(bytes_text(bytes), out));
    EXPECT_EQ(out, bytes);
  }
  EXPECT_EQ(bytes_text(0), "0");
  EXPECT_EQ(bytes_text(1000), "1000B");
  EXPECT_EQ(bytes_text(1536 << 10), "1536KiB");
  for (const Duration d : {Duration::nanoseconds(1), Duration::microseconds(1500), Duration::seconds(3)}) {
    Duration out;
    EXPECT_TRUE(parse_duration(duration_text(d), out));
    EXPECT_EQ(out, d);
  }
}

}  // namespace
}  // namespace sluice::rack
