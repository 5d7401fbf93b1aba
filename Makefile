# The commands of this project. `make demo` and `make test` need nothing but a Debian 12 with Rust, as root (or with
# sudo for the packages); each installs what it needs.

.PHONY: all docs deb check-deb demo example-riscv64 example-fleet check-fleet test check lint lint-reference bench soak setup setup-test setup-deb setup-bench setup-soak setup-example setup-fleet install uninstall clean

target := $(or $(CARGO_TARGET_DIR),target)
inarch := $(target)/release/inarch

all: setup
	cargo build --release

demo: all
	INARCH=$(inarch) scripts/demo

# A project is cross-compiled here, and tested in RISC-V guests.
example-riscv64: setup-example all
	INARCH=$(abspath $(inarch)) examples/riscv64/run

# A test suite is cut into shards, each in a guest of its own, by a Slurm of this machine alone (FLEET=local: without a scheduler).
example-fleet: setup-fleet all
	INARCH=$(abspath $(inarch)) examples/fleet/run

# That a broken shard is named, in each way that shards break.
check-fleet: setup-fleet all
	INARCH=$(abspath $(inarch)) examples/fleet/check

# Test programs that start guests or take the built command, and all others.
large := guests promises
programs := $(basename $(notdir $(wildcard crates/*/tests/*.rs))) $(notdir $(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs)))
small := $(filter-out $(large),$(sort $(programs)))

# Three tests run at a time on two processors: one of them waits for its guest, a disk or a clock most of the time.
test_flags := --test-threads 3 $(TEST_FLAGS)

test: setup-test
	# One build of all packages: a part of them has other features, and is compiled again.
	cargo test --workspace --no-run
	# A script that runs this in the background has signals ignored that tests send.
	scripts/alone env --default-signal scripts/check whole "$(test_flags)" $(small)
	scripts/alone env --default-signal cargo test --workspace $(large:%=--test %) -- $(test_flags)
	cargo test --workspace --doc

# What to run after each edit: under two minutes once all is built, and no guest is started.
check: setup-test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/check quick "--quiet --test-threads 4" $(small)

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(MAKE) lint-reference

# The part of it that a change of public items or of their documentation needs.
lint-reference: setup
	# The reference: heads of modules link to private modules, for readers of the source.
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
		cargo doc -q --workspace --no-deps --document-private-items
	# Fuzz targets are built with another compiler; that they still fit the crates shows without libFuzzer, too. With this workspace's
	# profiles, most of what they need is there already.
	CUSTOM_LIBFUZZER_PATH=/none/libfuzzer.a cargo check -q --config Cargo.toml --manifest-path fuzz/Cargo.toml --target-dir $(target)

bench: setup-bench all
	INARCH=$(inarch) benches/all

soak: setup-soak all
	INARCH=$(inarch) scripts/soak

# README and docs/ as a book: pages for a browser, with a search. The first time, mdBook is built.
mdbook := $(target)/tools/bin/mdbook

docs: $(mdbook)
	scripts/book $(abspath $(mdbook)) $(abspath $(target))/book

$(mdbook):
	cargo install -q --locked --no-default-features --features search --version 0.5.4 --root $(target)/tools mdbook

prefix ?= /usr/local

# The program, its manual pages, and completions for bash, zsh and fish.
install: all
	scripts/install $(inarch) "$(DESTDIR)$(prefix)"

uninstall:
	scripts/install --remove "$(DESTDIR)$(prefix)"

# A Debian package, and whether a new Debian takes it.
deb: setup-deb all
	scripts/deb $(inarch) $(target)

check-deb: deb
	scripts/check-deb $(target)/inarch_*.deb

setup:
	@scripts/setup run

setup-example:
	@scripts/setup run example

setup-fleet:
	@scripts/setup run fleet

setup-test:
	@scripts/setup run test

setup-bench:
	@scripts/setup run bench

setup-deb:
	@scripts/setup run deb

setup-soak:
	@scripts/setup run soak

clean:
	cargo clean
