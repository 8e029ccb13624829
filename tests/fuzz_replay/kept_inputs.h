// What a fuzzer kept, and inputs near it: for tests that replay a corpus, and search a little further without a fuzzer.
//
// Units:   SLUICE_ROUNDS says how many inputs a search tries (nightly: millions). All is drawn from one seed, so a failing round repeats.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/effort_test.h"
#include "base/rng.h"

namespace sluice::fuzz {

using Input = std::vector<std::uint8_t>;

struct KeptInput {
  std::string name;
  Input bytes;
};

inline std::vector<KeptInput> kept_inputs(const std::string& corpus) {
  std::vector<KeptInput> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/fuzz/corpus/" + corpus)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    inputs.push_back({entry.path().filename(), Input(text.begin(), text.end())});
  }
  std::sort(inputs.begin(), inputs.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return inputs;
}

// One of the inputs with a few bytes changed, cut, doubled, or the end of another behind its beginning.
inline void mutate(Rng& rng, const std::vector<KeptInput>& inputs, Input& out) {
  out = inputs[rng.below(inputs.size())].bytes;
  for (std::uint64_t changes = 1 + rng.below(4); changes != 0; --changes) {
    const std::size_t at = rng.below(out.size() + 1);
    const auto place = out.begin() + static_cast<std::ptrdiff_t>(at);
    const auto byte = static_cast<std::uint8_t>(rng.below(256));
    switch (rng.below(8)) {
      case 0: out.resize(at); break;
      case 1: out.insert(place, byte); break;
      case 2: {
        const Input& other = inputs[rng.below(inputs.size())].bytes;
        const std::size_t from = std::min(at, other.size());
        out.resize(at);
        out.insert(out.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
      case 3:
        if (at < out.size()) out[at] = static_cast<std::uint8_t>(out[at] ^ (1u << byte % 8));
        break;
      case 4:
        if (at < out.size()) out[at] = static_cast<std::uint8_t>(out[at] + (byte % 2 == 0 ? 1 : -1));
        break;
      default:
        if (at < out.size()) out[at] = byte;
    }
  }
}

// Calls check(input) for inputs near those kept.
template <class Check>
void search_near(const std::vector<KeptInput>& inputs, std::uint64_t how_many, Check check) {
  Rng rng(1);
  Input input;
  for (std::uint64_t round = 0; round < how_many; ++round) {
    Rng own = rng.fork(round);
    mutate(own, inputs, input);
    check(input);
  }
}

}  // namespace sluice::fuzz
