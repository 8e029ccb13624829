#include "sim/world/fields.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "sim/edm/edm_load.h"
#include "sim/edm/edm_modes.h"
#include "sim/experiment/experiment.h"
#include "sim/load/clover_load.h"
#include "sim/load/cowbird_load.h"
#include "sim/load/order_load.h"
#include "sim/load/tenant_load.h"
#include "sim/world/hardware.h"

namespace sluice::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Units, AreReadExactly) {
  Duration duration;
  EXPECT_TRUE(parse_duration("54.6 ns", duration));
  EXPECT_EQ(duration, Duration::picoseconds(54'600));
  EXPECT_TRUE(parse_duration("3ms", duration));
  EXPECT_EQ(duration, Duration::milliseconds(3));
  std::uint64_t number = 0;
  EXPECT_TRUE(parse_rate("100 Gb/s", number));
  EXPECT_EQ(number, 100'000'000'000u);
  EXPECT_TRUE(parse_byte_count("2 MiB", number));
  EXPECT_EQ(number, 2u << 20);
}

TEST(Units, RefuseWhatTheyDoNotKnow) {
  Duration duration;
  for (const char* text :
       {"", "5", "5 parsecs", "ns", "-5 ns", "5. ns", ".5 ns", "0.0001 ns", "99999999999999999999 s", "9999999999 s"}) {
    EXPECT_FALSE(parse_duration(text, duration)) << text;
  }
}

std::string connectx5() { return read_text(SLUICE_SOURCE_DIR "/experiments/hardware/connectx5.toml").value(); }

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t place = text.find(what);
  EXPECT_NE(place, std::string::npos) << what;
  return text.replace(place, what.size(), by);
}

TEST(Hardware, NamesFileLineAndKeyOfWhatIsWrong) {
  const auto message = [](const std::string& text) { return parse_hardware(text, "my.toml").error().message; };
  EXPECT_THAT(message(replaced(connectx5(), "packet_interval = { value = \"5 ns\"",
                               "packet_interval = { value = \"5 lightyears\"")),
              AllOf(HasSubstr("my.toml: line 6:"), HasSubstr("[nic] packet_interval"), HasSubstr("duration")));
  EXPECT_THAT(message(replaced(connectx5(), "atomic_interval =", "atomic_intervall =")),
              HasSubstr("[nic] atomic_interval"));
  EXPECT_THAT(message(replaced(connectx5(), "[host]", "[host]\nturbo = { value = 1, source = \"x\" }")),
              AllOf(HasSubstr("turbo is not known"), HasSubstr("time_slice")));
  EXPECT_THAT(message("name = \"x\""), HasSubstr("is missing"));
}

// Or work of a loaded machine would be no duration any more, and take less than nothing.
TEST(Hardware, HasCostsOfASecondAtMostAndCoresTenTimesAsSlow) {
  const auto message = [](const std::string& key, const std::string& value) {
    const std::string head = key + " = { value = ";
    std::string text = connectx5();
    const std::size_t at = text.find(head);
    const auto hardware = parse_hardware(text.replace(at, text.find(',', at) - at, head + value), "my.toml");
    return hardware ? std::string() : hardware.error().message;
  };
  for (const char* const cost : {"poll_cost", "completion_cost", "post_cost", "doorbell_cost"}) {
    EXPECT_EQ(message(cost, "\"1 s\""), "");
    EXPECT_THAT(message(cost, "\"1001 ms\""), AllOf(HasSubstr(cost), HasSubstr("from 0 ps to 1 s")));
  }
  for (const char* const percent : {"all_cores_percent", "shared_core_percent"}) {
    EXPECT_EQ(message(percent, "1000"), "");
    EXPECT_THAT(message(percent, "1001"), AllOf(HasSubstr(percent), HasSubstr("from 100 to 1000")));
  }
}

// Of which each of the threads that run at once is given a part.
TEST(Hardware, HasTimeSlicesOfAMicrosecondAtLeast) {
  const auto message = [](const char* slice) {
    const std::string text = replaced(connectx5(), "time_slice = { value = \"3 ms\"",
                                      std::string("time_slice = { value = \"") + slice + "\"");
    const auto hardware = parse_hardware(text, "my.toml");
    return hardware ? std::string() : hardware.error().message;
  };
  EXPECT_EQ(message("1 us"), "");
  EXPECT_THAT(message("1 ps"), AllOf(HasSubstr("time_slice must be a duration"), HasSubstr("from 1 us to 1000 s")));
}

// Slower links would take their packets past the end of time; what resumes above where it paused would do both at once.
TEST(Hardware, HasLinksOfAMegabitAtLeastAndThresholdsInTheirOrder) {
  const auto message = [](const std::string& text) {
    const auto hardware = parse_hardware(text, "my.toml");
    return hardware ? std::string() : hardware.error().message;
  };
  EXPECT_EQ(message(replaced(connectx5(), "\"100 Gb/s\"", "\"1 Mb/s\"")), "");
  EXPECT_THAT(message(replaced(connectx5(), "\"100 Gb/s\"", "\"999999 b/s\"")),
              AllOf(HasSubstr("[link] bits_per_second must be a rate"), HasSubstr("from 1 Mb/s")));
  EXPECT_EQ(message(replaced(connectx5(), "\"192 KiB\"", "\"256 KiB\"")), "");
  EXPECT_THAT(message(replaced(connectx5(), "\"192 KiB\"", "\"257 KiB\"")),
              AllOf(HasSubstr("[switch] pause_to_bytes must be"), HasSubstr("from 0 to 262144 B")));
  const std::string marking = read_text(SLUICE_SOURCE_DIR "/experiments/hardware/connectx5-dcqcn.toml").value();
  EXPECT_EQ(message(replaced(marking, "\"1600 KiB\"", "\"400 KiB\"")), "");
  EXPECT_EQ(message(replaced(marking, "\"100 Gb/s\"", "\"2000 Gb/s\"")), "");
  EXPECT_THAT(
      message(replaced(marking, "\"100 Gb/s\"", "\"2001 Gb/s\"")),
      AllOf(HasSubstr("my.toml: line "), HasSubstr("link must be of 2000 Gb/s at most where the switch marks")));
  EXPECT_EQ(message(replaced(connectx5(), "\"100 Gb/s\"", "\"64000 Gb/s\"")), "");
  EXPECT_THAT(message(replaced(marking, "\"1600 KiB\"", "\"399 KiB\"")),
              AllOf(HasSubstr("[switch] ecn_to_bytes must be"), HasSubstr("from 409600 to")));
}

TEST(EdmHardware, RefusesWhatCannotBe) {
  const std::string stages = read_text(SLUICE_SOURCE_DIR "/experiments/hardware/edm_cluster_stages.toml").value();
  const auto message = [](const std::string& text) {
    const auto hardware = parse_edm_hardware(text, "my.toml");
    return hardware ? std::string() : hardware.error().message;
  };
  EXPECT_EQ(message(stages), "");
  EXPECT_THAT(
      message(replaced(stages, "answer_latency = { value = \"25.6 ns\"", "answer_latency = { value = \"20 ns\"")),
      AllOf(HasSubstr("answer_latency"), HasSubstr("host_latency")));
  EXPECT_THAT(message(replaced(stages, "value = \"100 Gb/s\"", "value = \"100000 Gb/s\"")),
              AllOf(HasSubstr("bits_per_second"), HasSubstr("from 1 Mb/s to 64000 Gb/s")));
  EXPECT_THAT(message(replaced(stages, "value = \"100 Gb/s\"", "value = \"999999 b/s\"")),
              HasSubstr("bits_per_second must be a rate"));
  for (const char* const iteration : {"0 ns", "1001 us"}) {
    EXPECT_THAT(message(replaced(stages, "iteration = { value = \"1 ns\"",
                                 std::string("iteration = { value = \"") + iteration + "\"")),
                AllOf(HasSubstr("my.toml: line"), HasSubstr("[edm] iteration must be a duration"),
                      HasSubstr("from 1 ps to 1 ms")));
  }
  EXPECT_THAT(
      message(replaced(stages, "request_latency = { value = \"5.12 ns\"", "request_latency = { value = \"1 s\"")),
      HasSubstr("request_latency must be a duration"));
}

TEST(EdmTestbedHardware, RefusesWhatCannotBe) {
  const std::string testbed = read_text(SLUICE_SOURCE_DIR "/experiments/hardware/edm_rack.toml").value();
  const auto message = [&](const std::string& what, const std::string& by) {
    const std::string path = ::testing::TempDir() + "testbed.toml";
    std::ofstream(path) << replaced(testbed, what, by);
    const auto hardware = load_edm_testbed_hardware(path);
    return hardware ? std::string() : hardware.error().message;
  };
  EXPECT_EQ(message("\"333 ps\"", "\"1 ms\""), "");
  EXPECT_THAT(message("\"2.56 ns\"", "\"0 ns\""), AllOf(HasSubstr("cycle must be"), HasSubstr("from 1 ps to 1 ms")));
  EXPECT_THAT(message("\"333 ps\"", "\"0 ns\""), AllOf(HasSubstr("clock must be"), HasSubstr("from 1 ps to 1 ms")));
  EXPECT_THAT(message("\"666.2 ns\"", "\"1 s\""),
              AllOf(HasSubstr("tcp_stack must be"), HasSubstr("from 0 ps to 1 ms")));
  EXPECT_THAT(message("\"100 Gb/s\"", "\"1 b/s\""), HasSubstr("bits_per_second must be a rate"));
}

TEST(Hardware, NeedsASourceForEachNumber) {
  const std::string text =
      replaced(connectx5(), "{ value = 16, source = \"ConnectX-5: max_qp_rd_atom = 16 (ibv_devinfo)\" }", "16");
  EXPECT_THAT(parse_hardware(text, "my.toml").error().message,
              AllOf(HasSubstr("reads_in_flight"), HasSubstr("source")));
}

// Every experiment of the project can be loaded.
TEST(Experiment, LoadsTheProjectsOwn) {
  for (const char* name :
       {"fig01", "fig02", "fig03", "fig04", "fig05", "fig11", "fig12", "fig13", "fig14", "fig15", "fig16"}) {
    const auto loaded = load_experiment(std::string(SLUICE_SOURCE_DIR "/experiments/") + name + ".toml");
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    EXPECT_GE(loaded->points.size(), 8u) << name;
  }
}

TEST(Experiment, OfTheBoxsMemoryHasNoHardware) {
  const auto loaded = load_experiment(SLUICE_SOURCE_DIR "/experiments/fig08.toml");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_FALSE(loaded->simulated());
  EXPECT_EQ(loaded->hardware_of(loaded->points.front()).name, "");
  const std::string path = ::testing::TempDir() + "box.toml";
  std::ofstream(path) << replaced(read_text(SLUICE_SOURCE_DIR "/experiments/fig08.toml").value(),
                                  "kind =", "hardware = \"connectx5\"\nkind =");
  EXPECT_THAT(load_experiment(path).error().message,
              HasSubstr("hardware has no part in what kind = \"box_memory\" counts"));
}

// A file of one's own finds the project's hardware, but its own first.
TEST(Experiment, LooksForHardwareBesideItAndThenElsewhere) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "own_experiment";
  std::filesystem::create_directories(folder / "hardware");
  const std::string path = folder / "mine.toml";
  std::filesystem::copy_file(SLUICE_SOURCE_DIR "/experiments/fig01.toml", path,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(load_experiment(path).error().message,
              AllOf(HasSubstr("own_experiment/mine.toml: line "), HasSubstr("names connectx5.toml in hardware/ beside"),
                    ::testing::EndsWith("there is none")));
  const std::string ours = SLUICE_SOURCE_DIR "/experiments/hardware";
  EXPECT_EQ(load_experiment(path, {}, ours)->hardware.name, parse_hardware(connectx5(), "")->name);
  std::ofstream(folder / "hardware/connectx5.toml") << replaced(connectx5(), "name = \"", "name = \"my ");
  EXPECT_THAT(load_experiment(path, {}, ours)->hardware.name, ::testing::StartsWith("my "));
  std::filesystem::remove_all(folder);
}

class Broken : public ::testing::Test {
 protected:
  // The message for Figure 1's file with `what` replaced.
  static std::string message(const std::string& what, const std::string& by) {
    const std::string text = read_text(SLUICE_SOURCE_DIR "/experiments/fig01.toml").value();
    const std::string path = ::testing::TempDir() + "broken.toml";
    std::FILE* const file = std::fopen(path.c_str(), "w");
    std::fputs(replaced(text, what, by).c_str(), file);
    std::fclose(file);
    const auto loaded = load_experiment(path, SLUICE_SOURCE_DIR "/experiments/hardware/connectx5.toml");
    return loaded ? "loaded" : loaded.error().message;
  }
};

TEST_F(Broken, ExperimentsAreRefusedWithLineKeyAndWhatIsAllowed) {
  EXPECT_EQ(message("Inlined", "Inlined"), "loaded");
  EXPECT_THAT(message("operation = \"write\"", "operation = \"wirte\""),
              AllOf(HasSubstr("broken.toml: line 13:"), HasSubstr("operation must be one of write, read, cas, faa")));
  EXPECT_THAT(message("in_flight = 128", "in_flihgt = 128"), HasSubstr("in_flight is missing"));
  EXPECT_THAT(message("measure = \"500 us\"", "measure = 500"),
              AllOf(HasSubstr("measure must be a duration"), HasSubstr("line 17")));
  EXPECT_THAT(message("queue_pairs = [1, 2,", "queue_pairs = [1, 100000,"),
              HasSubstr("queue_pairs must be a whole number"));
  EXPECT_THAT(message("117.9, 117.9]", "117.9]"), HasSubstr("must be a list of 8 numbers"));
  EXPECT_THAT(message("y = \"throughput\"", "y = \"foo\""),
              AllOf(HasSubstr("broken.toml: line "), HasSubstr("y must be one of throughput, p50_us, p99_us")));
  EXPECT_THAT(message("kind = \"verbs\"", "kind = \"magic\""), HasSubstr("kind must be one of"));
  EXPECT_THAT(message("[workload]", "[workload]\ncolour = 3"), HasSubstr("colour is not known here"));
  EXPECT_THAT(message("[workload]", "[worklaod]"), HasSubstr("workload is missing"));
  EXPECT_THAT(message("title =", "= title"), HasSubstr("line 1"));
}

TEST_F(Broken, WhatTheSweepVariesIsSaidNowhereElse) {
  EXPECT_THAT(message("[workload]", "[workload]\nqueue_pairs = 3"),
              AllOf(HasSubstr("broken.toml: line 13:"), HasSubstr("[workload] queue_pairs is what [sweep] varies")));
  for (const std::string variant : {"[[series]]", "[[panel]]"})
    EXPECT_THAT(message("[[paper]]", variant + "\nname = \"a\"\nqueue_pairs = 3\n\n[[paper]]"),
                HasSubstr(variant + " queue_pairs is what [sweep] varies"));
}

TEST_F(Broken, HardwareIsSaidAtTheTopOrOfAPanel) {
  const std::string own = "[[panel]]\nname = \"a\"\nhardware = \"connectx5\"\n\n";
  EXPECT_THAT(message("[workload]", "[workload]\nhardware = \"connectx5\""),
              AllOf(HasSubstr("broken.toml: line 13:"), HasSubstr("[workload] hardware is said at the top")));
  EXPECT_THAT(message("[[paper]]", own + "[[series]]\nname = \"b\"\nhardware = \"connectx5\"\n\n[[paper]]"),
              HasSubstr("[[series]] hardware is said at the top, or in [[panel]]"));
}

TEST_F(Broken, WhatLiesBeyondABoundNeedsABound) {
  const std::string ys = "y = [18.3, 37.1, 56.1, 74.9, 94.0, 112.7, 117.9, 117.9]";
  EXPECT_EQ(message(ys, ys + "\nwithin_percent = 3\nwithin_or = \"above\""), "loaded");
  EXPECT_THAT(message(ys, ys + "\nwithin_or = \"above\""),
              AllOf(HasSubstr("[paper] within_or needs within_percent"), HasSubstr("beside it")));
  EXPECT_THAT(message("within_percent = 10", "within_or = \"above\""), HasSubstr("line 10: within_or needs"));
}

TEST_F(Broken, ARangeOfThePapersRises) {
  const std::string ys = "y = [18.3, 37.1, 56.1, 74.9, 94.0, 112.7, 117.9, 117.9]";
  EXPECT_EQ(message(ys, ys + "\nup_to = [18.3, 38, nan, 74.9, 94.0, 112.7, 117.9, 117.9]"), "loaded");
  EXPECT_THAT(message(ys, ys + "\nup_to = [18.3, 37, 56.1, 74.9, 94.0, 112.7, 117.9, 117.9]"),
              AllOf(HasSubstr("[paper] up_to has 37 where y has 37.1"), HasSubstr("must not be less")));
}

// What would divide by nothing, overflow or take all memory.
TEST_F(Broken, ExtremesAreRefusedBeforeAnythingIsSimulated) {
  EXPECT_THAT(message("measure = \"500 us\"", "measure = \"0 us\""), HasSubstr("longer than 0"));
  EXPECT_THAT(message("measure = \"500 us\"", "measure = \"9000000 s\""), HasSubstr("1000 s at most"));
  EXPECT_THAT(
      message("measure = \"500 us\"", "measure = \"500 us\"\nbox_packet_cost = \"1001 ms\""),
      HasSubstr("box_packet_cost must be a duration such as \"54.6 ns\" (ps, ns, us, ms, s), from 0 ps to 1 s"));
  EXPECT_THAT(message("measure = \"500 us\"", "measure = \"500 us\"\nbytes = \"0 B\""), HasSubstr("from 1 to"));
  EXPECT_THAT(message("measure = \"500 us\"", "measure = \"500 us\"\nbytes = \"8589934591 GiB\""),
              HasSubstr("from 1 to"));
}

TEST(Tolerance, OfAFactorHoldsNothingOfTheOtherSign) {
  Tolerance twice;
  twice.factor = 2;
  EXPECT_TRUE(twice.holds(-5, -3));
  EXPECT_FALSE(twice.holds(-5, -2));
  EXPECT_FALSE(twice.holds(-5, 5));
  EXPECT_FALSE(twice.holds(0, 5));
}

// What reading a workload of a few settings says.
template <class W>
std::string told(const std::string& settings) {
  const auto table = parse_toml("rate = \"40 Gb/s\"\n" + settings, "my.toml");
  std::string error;
  Fields fields(*table, "my.toml", "workload", error);
  W().read(fields);
  return error;
}

TEST(OrderWorkload, EndsBeforeTimeDoes) {
  const auto message = [](const std::string& interval, const std::string& requests) {
    return told<OrderWorkload>(
        "queue_pairs = 32\naddresses = 64\ntheta_thousandths = 0\nbytes = \"64 B\"\ngap = 1\ninterval = \"" + interval +
        "\"\nrequests = " + requests);
  };
  EXPECT_EQ(message("10 ms", "99999900"), "");
  EXPECT_EQ(message("1000 s", "1"), "");
  EXPECT_THAT(message("1000 s", "100000000"),
              AllOf(HasSubstr("line 8: "), HasSubstr("requests times interval must be")));
}

TEST(EdmWorkload, RefusesWhatWouldNeverEndAndWhatIsNotWhatWasAskedFor) {
  const auto message = told<EdmWorkload>;
  EXPECT_EQ(message("bytes = \"16777215 B\""), "");
  EXPECT_THAT(message("bytes = \"0 B\""), HasSubstr("bytes must be a number of bytes"));
  EXPECT_THAT(message("bytes = \"64 MiB\""), HasSubstr("from 1 to 16777215 B"));
  EXPECT_THAT(message("request_bytes = \"0 B\""), HasSubstr("from 1 to 64 B"));
  EXPECT_THAT(message("chunk_bytes = \"100 B\""), HasSubstr("chunk_bytes must be a multiple of 8 B"));
  EXPECT_THAT(message("packet_bytes = \"128 KiB\""), HasSubstr("from 8 to 65536 B"));
  EXPECT_EQ(message("messages = 100\nskip = 49"), "");
  EXPECT_THAT(message("messages = 100\nskip = 50"),
              AllOf(HasSubstr("line 3"), HasSubstr("leaves none of 100 messages")));
  // A packet of 1,456 B never joins a queue of less, and never has so much credit.
  EXPECT_EQ(message("protocol = \"dctcp\"\nbytes = \"4 KiB\"\nbuffer = \"1456 B\""), "");
  EXPECT_THAT(message("protocol = \"dctcp\"\nbytes = \"4 KiB\"\nbuffer = \"1448 B\""),
              AllOf(HasSubstr("line 4"), HasSubstr("buffer must have room for a packet, 1456 B")));
  EXPECT_EQ(message("protocol = \"cxl\"\ncredit = \"64 B\""), "");
  EXPECT_THAT(message("protocol = \"cxl\"\ncredit = \"64 B\"\npacket_framing = \"1 B\""),
              HasSubstr("credit must have room for a packet, 72 B"));
  EXPECT_THAT(message("protocol = \"cxl\"\nbytes = \"9 KiB\"\npacket_bytes = \"9 KiB\""),
              AllOf(HasSubstr("line 4"), HasSubstr("credit must have room")));
}

TEST(EdmWorkload, RefusesATraceWhoseTimesAreTooLong) {
  const TraceSpec spec{
      .nodes = 2, .messages = 1'000, .bits_per_second = 1'000'000, .sizes = SizeDistribution::constant(1 << 20)};
  EXPECT_TRUE(lasts_too_long(spec));
  TraceSpec shorter = spec;
  shorter.messages = 90;
  EXPECT_FALSE(lasts_too_long(shorter));
  const auto rows = generate_trace(shorter, 1);
  EXPECT_TRUE(std::ranges::is_sorted(rows, {}, &TraceRow::slot));
  EXPECT_NEAR(static_cast<double>(rows.back().slot) * 0.64e-9, 90 * (1 << 23) / 2e6, 120);
}

TEST(EdmModesWorkload, TakesNoOtherSizesThanItWasAskedFor) {
  const auto message = told<EdmModesWorkload>;
  EXPECT_EQ(message(""), "");
  EXPECT_THAT(message("write_bytes = \"0 B\""), HasSubstr("from 1 to 100000 B"));
  EXPECT_THAT(message("mega_bytes = \"2 MiB\""), HasSubstr("from 0 to 1048576 B"));
}

TEST(EdmModesWorkload, NeedsCyclesOfWholeBlocksOrTimesAsTheyAre) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "uneven_cycles";
  std::filesystem::create_directories(folder);
  const auto message = [&](const char* cycle, const char* times) {
    const std::string hardware = folder / "testbed.toml", experiment = folder / "modes.toml";
    std::ofstream(hardware) << replaced(read_text(SLUICE_SOURCE_DIR "/experiments/hardware/edm_testbed.toml").value(),
                                        "2.56 ns", cycle);
    std::ofstream(experiment) << replaced(read_text(SLUICE_SOURCE_DIR "/experiments/edm-modes.toml").value(),
                                          "[workload]\n", std::string("[workload]\n") + times);
    const auto loaded = load_experiment(experiment, hardware);
    return loaded ? "loaded" : loaded.error().message;
  };
  EXPECT_EQ(message("2.56 ns", ""), "loaded");
  EXPECT_THAT(message("3 ns", ""), AllOf(HasSubstr("modes.toml: line"), HasSubstr("times must be as_they_are")));
  std::filesystem::remove_all(folder);
}

TEST(EdmTestbedWorkload, TakesNoOtherSizesThanItWasAskedFor) {
  const auto message = [](const std::string& settings) {
    const auto table = parse_toml("operation = \"read\"\n" + settings, "my.toml");
    std::string error;
    Fields fields(*table, "my.toml", "workload", error);
    EdmTestbedWorkload().read(fields);
    return error;
  };
  EXPECT_EQ(message("bytes = \"1 MiB\"\nframe_bytes = \"9000 B\""), "");
  EXPECT_THAT(message("bytes = \"2 MiB\""), HasSubstr("from 1 to 1048576 B"));
  EXPECT_THAT(message("frame_bytes = \"1 B\""), HasSubstr("from 64 to 9000 B"));
  EXPECT_THAT(message("dram = \"1 s\""), HasSubstr("from 0 ps to 1 ms"));
}

TEST(CloverWorkload, HasOneWordForHowManyWrite) {
  const auto message = [](const std::string& how) {
    return told<CloverWorkload>(
        "system = \"clover\"\nthreads = 1\nmachines = 1\nkeys = 8\ntheta_thousandths = 0\nvalue_bytes = \"128 B\"\n" +
        how);
  };
  EXPECT_EQ(message("mix = \"C\""), "");
  EXPECT_EQ(message("writes_percent = 5"), "");
  EXPECT_THAT(message(""), HasSubstr("writes_percent is missing"));
  EXPECT_THAT(message("mix = \"C\"\nwrites_percent = 5"),
              AllOf(HasSubstr("line 9"), HasSubstr("writes_percent does not count beside mix = \"C\"")));
}

// What all lines say may be another's in one of them.
TEST(CloverWorkload, TakesTheMixThatIsSaidLater) {
  const auto all = parse_toml(
      "system = \"clover\"\nthreads = 1\nmachines = 1\nkeys = 8\ntheta_thousandths = 0\nvalue_bytes = \"128 B\"\n"
      "writes_percent = 5",
      "my.toml");
  const auto line = parse_toml("mix = \"C\"", "my.toml");
  const auto message = [](const toml::table& first, const toml::table& second) {
    std::string error;
    Fields fields(first, "my.toml", "workload", error);
    fields.over(second, "series");
    CloverWorkload().read(fields);
    return error;
  };
  EXPECT_EQ(message(*all, *line), "");
  EXPECT_THAT(message(*line, *all), HasSubstr("writes_percent does not count beside mix = \"C\""));
}

TEST(CloverWorkload, HasKeepersThatSleepForAMicrosecondAtLeast) {
  const auto message = [](const std::string& nap) {
    return told<CloverWorkload>(
        "system = \"clover\"\nthreads = 1\nmachines = 1\nwrites_percent = 5\nkeys = 8\ntheta_thousandths = 0\n"
        "value_bytes = \"128 B\"\nkeeper_nap = \"" +
        nap + "\"");
  };
  EXPECT_EQ(message("1 us"), "");
  EXPECT_THAT(message("0 s"), HasSubstr("keeper_nap must be a duration"));
}

TEST(CowbirdWorkload, ProbesOnceInANanosecondAtMost) {
  const auto message = [](const std::string& probe) {
    return told<CowbirdWorkload>(
        "way = \"switch\"\nthreads = 1\nbytes = 64\nindex_cost = \"1 ns\"\nlocal_cost = \"1 ns\"\nissue_cost = \"1 "
        "ns\"\n"
        "complete_cost = \"1 ns\"\nlook_cost = \"1 ns\"\nengine_cost = \"1 ns\"\nprobe = \"" +
        probe + "\"");
  };
  EXPECT_EQ(message("1 ns"), "");
  EXPECT_THAT(message("0 ns"), AllOf(HasSubstr("probe must be a duration"), HasSubstr("from 1 ns to 1000 s")));
}

TEST(TenantWorkload, ChangesNoKeysOverRc) {
  const auto message = [](const std::string& transport) {
    return told<TenantWorkload>("scenario = \"rekey\"\nrekey_every = \"20 us\"\ntransport = \"" + transport + "\"");
  };
  EXPECT_EQ(message("1rma"), "");
  EXPECT_THAT(message("rc"), AllOf(HasSubstr("my.toml: line 3"), HasSubstr("rekey_every is nothing that")));
}

TEST(TenantWorkload, AsksAfterASpanOfTheRunAndNotOfWhatComesLater) {
  const auto message = [](const std::string& settings) {
    return told<TenantWorkload>("scenario = \"death\"\nwarm_up = \"1 ms\"\nmeasure = \"2 ms\"\n" + settings);
  };
  EXPECT_EQ(message("span_from = \"2 ms\"\nspan = \"1 ms\"\ndies_at = \"3 ms\""), "");
  EXPECT_THAT(message("span_from = \"2 ms\""), HasSubstr("span is missing"));
  EXPECT_THAT(message("span_from = \"2100 us\"\nspan = \"1 ms\""), HasSubstr("span must be over"));
  EXPECT_THAT(message("span = \"1 ms\"\ndies_at = \"3001 us\""), HasSubstr("dies_at must be before"));
}

}  // namespace
}  // namespace sluice::sim
