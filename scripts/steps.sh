# shellcheck shell=bash
# What ./test, ./demo and .ci/run share: numbered, timed steps; configure and build; run tests and count them.
# Source it with the repository's top folder as the working directory.

jobs=$(nproc)
# What one clone has compiled, the next need not compile again.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
step_number=0

# step WORDS... -- COMMAND...: says what is done, does it, says how long it took. Returns the command's status.
step() {
  local words=() began=$SECONDS status=0
  while [ "$1" != -- ]; do words+=("$1") && shift; done
  shift
  step_number=$((step_number + 1))
  echo "==> $step_number. ${words[*]}"
  "$@" </dev/null || status=$?
  local outcome=finished
  [ $status = 0 ] || outcome="FAILED (status $status)"
  echo "    $outcome in $((SECONDS - began)) s"
  return $status
}

# build PRESET [TARGET...]: configures and builds a preset of CMakePresets.json.
build() {
  local preset=$1 folder
  shift
  folder=$(build_folder "$preset")
  mkdir -p "$folder"
  if ! cmake --preset "$preset" >"$folder/configure.log" 2>&1; then
    tail -n 40 "$folder/configure.log"
    return 1
  fi
  cmake --build "$folder" --parallel "$jobs" ${1:+--target "$@"}
}

build_folder() {
  [ "$1" = release ] && echo build || echo "build-$1"
}

# run_tests PRESET CTEST_ARGUMENT...: runs ctest; leaves "passed failed skipped" in the build folder's test-results/totals.
# Two at a time: tests that need the machine to themselves say RUN_SERIAL.
run_tests() {
  local folder results
  folder=$(build_folder "$1")
  results=$PWD/$folder/test-results
  shift
  rm -rf "$results"
  mkdir -p "$results"
  GTEST_OUTPUT="xml:$results/" ctest --test-dir "$folder" --parallel 2 --output-on-failure --test-output-truncation head \
    --no-tests=error --output-junit "$results/ctest.junit" "$@" || :
  scripts/count-tests "$results"
}

# summary PASSED FAILED SKIPPED: the last line of ./test and .ci/run.
summary() {
  echo "$1 passed, $2 failed, $3 skipped"
}
