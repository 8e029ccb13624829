#include "cli/ranks.h"

#ifdef SLUICE_HAS_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <numeric>

namespace sluice::cli {
namespace {

constexpr int kText = 1;  // the tag of all messages

class MpiRanks final : public Ranks {
 public:
  MpiRanks() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm machine = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &here_);
    MPI_Comm_free(&machine);
  }
  ~MpiRanks() override { MPI_Finalize(); }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int here() const override { return here_; }
  void send(int to, const std::string& text) override {
    MPI_Send(text.data(), static_cast<int>(text.size()), MPI_CHAR, to, kText, MPI_COMM_WORLD);
  }
  std::optional<RankMessage> receive() override {
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kText, MPI_COMM_WORLD, &there, &status);
    if (there == 0) return std::nullopt;
    int length = 0;
    MPI_Get_count(&status, MPI_CHAR, &length);
    RankMessage message{status.MPI_SOURCE, std::string(static_cast<std::size_t>(length), '\0')};
    MPI_Recv(message.text.data(), length, MPI_CHAR, message.from, kText, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return message;
  }
  std::vector<std::string> exchange(const std::string& text) override {
    const auto ranks = static_cast<std::size_t>(size_);
    const int length = static_cast<int>(text.size());
    std::vector<int> lengths(ranks);
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
    std::vector<int> starts(ranks);
    std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
    std::string all(static_cast<std::size_t>(starts.back() + lengths.back()), '\0');
    MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(), MPI_CHAR, MPI_COMM_WORLD);
    std::vector<std::string> texts(ranks);
    for (std::size_t i = 0; i < ranks; ++i)
      texts[i] = all.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(lengths[i]));
    return texts;
  }

 private:
  int rank_ = 0;
  int size_ = 0;
  int here_ = 0;
};

}  // namespace

Result<std::unique_ptr<Ranks>> Ranks::start() {
  if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) return fail("MPI does not start");
  auto ranks = std::make_unique<MpiRanks>();
  if (ranks->size() < 2)
    return fail("there is one rank alone; start it with: mpirun -n RANKS sluice experiment NAME --distribute mpi");
  return ranks;
}

}  // namespace sluice::cli

#else

namespace sluice::cli {

Result<std::unique_ptr<Ranks>> Ranks::start() {
  return fail(
      "this sluice was built without MPI; install Open MPI (Debian: openmpi-bin, libopenmpi-dev) and build it anew");
}

}  // namespace sluice::cli

#endif
