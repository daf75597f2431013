# Chores. `just` lists them; each is one cargo command, so nothing here is needed to work on the project.

_list:
    @just --list

# Formatting and lints
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets

# All tests
test:
    cargo test --workspace

# Whole models against the reference implementation's numbers, fused and composed
conform *DIRS="tests/golden":
    cargo run --release -p conformance --bin goldens -- --backend cpu {{DIRS}}
    cargo run --release -p conformance --bin goldens -- --backend cpu --composed {{DIRS}}

# Fuzz whatever reads files and requests: `just fuzz gguf --seconds 600`
fuzz *ARGS="all --seconds 20":
    cargo run -p engraft-fuzz -- {{ARGS}}

# CUDA kernels: compile them by the pinned compiler, or `just kernels --check`
kernels *ARGS:
    cargo xtask kernels {{ARGS}}

# CUDA on the software driver
cuda:
    .ci/lane-cuda

# Speed of a random model next to the machine's limits
bench *ARGS="--shape M --batch 1,8":
    cargo run --release -- bench {{ARGS}}

# Documentation, warnings are errors
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Lengths of source files
sizes:
    cargo run -p xtask -- sizes

# What every change must pass
ci:
    .ci/run
