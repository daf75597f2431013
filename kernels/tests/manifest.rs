//! The manifests against what lies next to them: sources and texts have not changed since they were compiled.

#![allow(clippy::unwrap_used)]

use bytemuck::Zeroable;
use engraft_kernels::pack::Encoding;
use engraft_kernels::params::kv::KvView;
use engraft_kernels::params::{
    Elem, Format, MatView, attention, elementwise, embed, exchange, flash, gemm, grouped, index, int8, kv,
    linear, moe, norm, picture, rope, rows, sample,
};
use engraft_kernels::{Launch, MODULES, Module, entries, param_bytes, single, waits_for_others};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::Path;

fn ptx(module: &Module) -> &str {
    module.ptx().unwrap()
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn sources_and_texts_are_those_of_the_manifest() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(!MODULES.is_empty());
    for module in MODULES {
        let path = root.join("ptx").join(format!("{}.json", module.stem));
        let manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let about = &manifest["modules"][module.arch];
        assert_eq!(about["sha256"], hash(ptx(module)), "{} for {}", module.stem, module.arch);
        let listed = about["entries"].as_object().unwrap();
        let mut here: Vec<&str> = entries(ptx(module)).collect();
        here.sort_unstable();
        assert_eq!(listed.keys().map(String::as_str).collect::<Vec<_>>(), here);
        for (file, known) in manifest["sources"].as_object().unwrap() {
            let text = std::fs::read_to_string(root.join("cuda").join(file)).unwrap();
            assert_eq!(*known, hash(&text), "{file} has changed: run `cargo xtask kernels`");
        }
    }
}

/// Launches on Hopper overlap: one entry that does not wait would read what is not written yet.
#[test]
fn every_entry_stands_alone_and_waits_for_the_launches_before_it() {
    for module in MODULES {
        for entry in entries(ptx(module)) {
            let text = single(ptx(module), entry).unwrap();
            assert_eq!(entries(&text).collect::<Vec<_>>(), [entry]);
            assert!(param_bytes(&text, entry).unwrap() > 0);
            let waits = waits_for_others(&text);
            assert_eq!(waits, module.arch == "compute_90a", "{entry} for {}", module.arch);
            let parsed = ptx_vm::Module::parse(&text);
            assert!(parsed.is_ok(), "{entry} for {}: {:?}", module.arch, parsed.err());
        }
        assert!(single(ptx(module), "nothing").is_none());
    }
}

/// A matmul or an attention that a compiler, or a change, took off the tensor cores would be right and slow.
#[test]
fn kernels_for_tensor_cores_use_them() {
    let (everyone, hopper) = ("mma.sync", "wgmma.mma_async");
    let mut found = 0;
    for module in MODULES {
        for entry in entries(ptx(module)) {
            let wanted = match module.stem {
                "gemm" | "gemmq" | "grouped" | "groupedq" => everyone,
                "flash" if !entry.starts_with("flash_merge_") => everyone,
                "int8" if entry == "int8_dense" => everyone,
                "gemmw" | "gemmwq" | "flashw" => hopper,
                _ => continue,
            };
            let text = single(ptx(module), entry).unwrap();
            assert!(text.contains(wanted), "{entry} for {} has no {wanted}", module.arch);
            found += 1;
        }
    }
    // An entry of another name would go by unseen.
    let packed = 12 * 2 * 3;
    assert_eq!(found, 2 * (12 + packed + 10 + packed + 28 + 1) + 20 + packed + 4);
    // What entries share has none, or every text would.
    let merge = MODULES
        .iter()
        .find(|module| module.stem == "flash")
        .and_then(|module| single(ptx(module), "flash_merge_bf16"));
    assert!(!merge.unwrap().contains(everyone));
}

#[test]
fn entries_say_which_source_they_are_in() {
    for module in MODULES {
        for entry in entries(ptx(module)) {
            assert_eq!(engraft_kernels::stem_of(entry), module.stem, "{entry}");
        }
    }
}

/// Every entry that a launch can name.
fn named() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut add = |entries: &[&str]| all.extend(entries.iter().map(|entry| entry.to_string()));
    add(&[kv::Read::ENTRY, sample::Sample::ENTRY]);
    add(&Elem::KEPT.map(kv::Append::entry));
    for v_dim in [128, 129] {
        Elem::KEPT.into_iter().for_each(|elem| add(&attention::Paged::entries(elem, v_dim)));
    }
    add(&rows::ENTRIES);
    add(&index::ENTRIES);
    add(&exchange::ENTRIES);
    add(&[moe::Route::ENTRY, moe::Group::ENTRY]);
    add(&kv::Copy::ENTRIES);
    add(&linear::Linear::COLUMNS);
    add(&int8::ENTRIES);
    for elem in Elem::ALL {
        add(&[kv::RotateAppend::entry(elem), rope::Rope::entry(elem), moe::Combine::entry(elem)]);
        add(&[elementwise::Add::entry(elem), elementwise::Activate::entry(elem)]);
        add(&[elementwise::Xielu::entry(elem), elementwise::Limit::entry(elem)]);
        add(&[elementwise::Gate::entry(elem), elementwise::Scale::entry(elem)]);
        add(&[elementwise::Modulate::entry(elem)]);
        add(&Elem::ALL.map(|to| elementwise::Convert::entry(elem, to)));
        add(rows::Gather::entries(elem));
        add(picture::Linear::entries(elem));
        add(&[picture::Conv::entry(elem)]);
        add(&[norm::GroupNorm::entry(elem)]);
        for (like, strict) in [(false, false), (false, true), (true, false), (true, true)] {
            add(&[norm::Rescale::entry(elem, like, strict)]);
        }
        for (width, strict) in [(512, false), (512, true), (513, false), (513, true)] {
            add(&[norm::Norm::entry(elem, width, strict)]);
        }
        for v_dim in [128, 129] {
            add(&[attention::Dense::entry(elem, v_dim), attention::Disentangled::entry(elem, v_dim)]);
        }
    }
    for format in Format::ALL {
        add(&[embed::Embed::entry(format)]);
        add(&linear::Linear::entries(format).chain(moe::ExpertLinear::entries(format)).collect::<Vec<_>>());
    }
    for elem in [Elem::F16, Elem::BF16] {
        all.extend(flash::WIDTHS.iter().flat_map(|width| flash::entries(elem, *width, true, true)));
        let offsets = [false, true].into_iter().flat_map(|offset| {
            [Encoding::Bytes { offset }, Encoding::Nibbles { offset }, Encoding::FiveBits { offset }]
        });
        let others = [Encoding::Plain, Encoding::E4m3, Encoding::E2m1, Encoding::Mx];
        let large = [Encoding::LargeFourBits, Encoding::LargeFiveBits, Encoding::LargeSixBits];
        for encoding in offsets.chain(others).chain(large) {
            all.extend(gemm::entries(encoding, elem).chain(grouped::entries(encoding, elem)));
            all.extend(gemm::boxed_entries(encoding, elem, gemm::Hopper::All));
        }
    }
    all
}

#[test]
fn every_entry_has_a_launch_that_names_it_and_no_other_is_named() {
    let compiled: BTreeSet<String> =
        MODULES.iter().flat_map(|module| entries(ptx(module))).map(String::from).collect();
    let named = named();
    assert_eq!(named.difference(&compiled).collect::<Vec<_>>(), Vec::<&String>::new(), "named alone");
    assert_eq!(compiled.difference(&named).collect::<Vec<_>>(), Vec::<&String>::new(), "compiled alone");
    assert_eq!(gemm::name(Encoding::Plain, Elem::F16), "gemm_*_f16");
    assert_eq!(grouped::name(Encoding::Plain, Elem::BF16), "grouped_*_bf16");
    assert_eq!(grouped::name(Encoding::Bytes { offset: false }, Elem::F16), "groupedq_*_f16_int8");
    assert_eq!(gemm::name(Encoding::FiveBits { offset: true }, Elem::BF16), "gemmq_*_bf16_int5a");
    assert_eq!(gemm::name(Encoding::LargeSixBits, Elem::F16), "gemmq_*_f16_q6_k");
}

/// Shared memory of a launch, dynamic and static, on the worst architecture.
fn shared(launch: &Launch) -> u64 {
    let of = |module: &&Module| module.stem == launch.stem();
    let each = MODULES.iter().filter(of).map(|module| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx").join(format!("{}.json", module.stem));
        let manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        manifest["modules"][module.arch]["entries"][&launch.entry]["shared"].as_u64().unwrap()
    });
    u64::from(launch.shared_bytes) + each.max().unwrap()
}

#[test]
fn shared_memory_is_what_choices_count_on() {
    for width in flash::WIDTHS {
        for elem in [Elem::F16, Elem::BF16] {
            let kv = KvView { kv_heads: 1, k_dim: width, v_dim: width, elem, ..KvView::default() };
            let p = flash::Flash { kv, elem, heads: 1, seqs: 1, ..flash::Flash::zeroed() }.with_few(1, 64);
            let most = shared(&p.whole(64)).max(shared(&p.split()));
            assert_eq!(u64::from(flash::most_shared(width)), most, "{width}");
        }
    }
    for (elem, k_dim) in [
        (Elem::F32, 512),
        (Elem::F32, 100),
        (Elem::BF16, 64),
        (Elem::F16, 33),
        (Elem::INT8, 33),
        (Elem::FP8, 576),
    ] {
        let kv = KvView { kv_heads: 1, k_dim, v_dim: 64, elem, ..KvView::default() };
        let q = MatView { rows: 1, ..MatView::NONE };
        let p = attention::Paged { q, kv, heads: 8, seqs: 1, ..attention::Paged::zeroed() };
        assert_eq!(attention::most_shared(elem, k_dim), shared(&p.launch()), "{k_dim}");
    }
    let sum = gemm::Sum::folded(512, 1);
    // Matmuls need no query: they fit the smallest device that is taken, 99 KiB a block.
    for format in [Format::Bf16, Format::Int8, Format::Int8a, Format::Int4, Format::Int4a, Format::Q8_0] {
        let layout = gemm::supports(Elem::BF16, Elem::BF16, format, 64, 256, 512, false).unwrap();
        let gemm = gemm::Gemm::new(&layout, sum, Elem::BF16, Elem::BF16, gemm::Then::Nothing);
        let of_experts = grouped::Grouped { gemm, ..grouped::Grouped::zeroed() };
        for launch in gemm.choices().into_iter().chain(of_experts.choices()) {
            assert!(shared(&launch) <= 99 << 10, "{launch:?}");
        }
    }
    // Hopper's own have what Hopper has.
    let kv = KvView { kv_heads: 1, k_dim: 128, v_dim: 128, elem: Elem::BF16, ..KvView::default() };
    let p = flash::Flash { kv, elem: Elem::BF16, heads: 1, seqs: 1, ..flash::Flash::zeroed() };
    assert!(p.whole_on_hopper(64).is_some_and(|launch| shared(&launch) <= 227 << 10));
    let layout = gemm::supports(Elem::F16, Elem::F16, Format::F16, 0, 256, 512, false).unwrap();
    for (boxed, _) in gemm::Gemm::new(&layout, sum, Elem::F16, Elem::F16, gemm::Then::Nothing).boxed_choices()
    {
        assert!(shared(&boxed.launch) <= 227 << 10, "{:?}", boxed.launch);
    }
}
