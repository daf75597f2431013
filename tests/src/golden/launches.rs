//! The plan held to what ran: every slot that it calls native has launched its kernel, and no matmul, norm,
//! look-up or attention ran by a kernel that the plan does not name.

use engraft_core::inject::InjectionPlan;
use std::collections::BTreeMap;

/// Kernels by name, and how often each ran.
pub type Launches = BTreeMap<String, u64>;

/// Beginnings of entries whose every launch belongs to a slot of the plan; others also serve in between
/// (gathering rows, converting logits, sorting slots by expert).
const PLANNED: [&str; 15] = [
    "attention_paged_",
    "attention_dense_",
    "attention_disentangled_",
    "embed_",
    "flash_whole_",
    "flashw_whole_",
    "gemm_",
    "gemmq_",
    "gemmw_",
    "gemmwq_",
    "grouped_",
    "groupedq_",
    "linear_",
    "moe_linear_",
    "picture_",
];

/// The same for what other families run in slots of other names, too (norms of heads, sums next to experts,
/// rotations apart). These are held to it where nothing is composed.
const PLANNED_IN_PLAIN: [&str; 7] = [
    "elementwise_activate_",
    "elementwise_add_",
    "elementwise_gate_",
    "int8_",
    "kv_append",
    "norm_",
    "rope_",
];

/// Families (as a plan names them) that run nothing but what their plan names.
const PLAIN: [&str; 4] = ["bert", "gpt2", "llama", "opt"];

/// Whether an entry's every launch belongs to a slot of this plan.
fn is_planned(plan: &InjectionPlan, entry: &str) -> bool {
    let begins = |beginning: &&str| entry.starts_with(beginning);
    let plain = || PLAIN.contains(&plan.arch.as_str()) && plan.composed().next().is_none();
    PLANNED.iter().any(begins) || (PLANNED_IN_PLAIN.iter().any(begins) && plain())
}

/// Whether an entry is what a plan's name means: `*` stands for any letters, ` | ` for either of two names.
fn is_named(name: &str, entry: &str) -> bool {
    if let Some((one, other)) = name.split_once(" | ") {
        return is_named(one, entry) || is_named(other, entry);
    }
    match name.split_once('*') {
        None => name == entry,
        Some((before, after)) => entry.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && is_named(after, &rest[at..]))
        }),
    }
}

/// What ran since `before`.
pub fn since(before: &Launches, after: &Launches) -> Launches {
    let ran = |(entry, n): (&String, &u64)| (entry.clone(), n - before.get(entry).unwrap_or(&0));
    after.iter().map(ran).filter(|(_, n)| *n > 0).collect()
}

/// What of a plan did not happen, and what happened without being planned: neither a slot's kernel nor one of
/// `parts`, those of composed slots among them ([`engraft_core::inject::kernels`]).
pub fn complaints(plan: &InjectionPlan, parts: &[String], ran: &Launches) -> Vec<String> {
    let mut complaints = Vec::new();
    for row in &plan.rows {
        let Some(kernel) = &row.kernel else { continue };
        if !ran.keys().any(|entry| is_named(kernel, entry)) {
            let slot = row.layer.map_or(row.slot.clone(), |layer| format!("layer {layer} {}", row.slot));
            complaints.push(format!("{slot} ({}) is planned to run {kernel}, which never ran", row.op));
        }
    }
    for entry in ran.keys() {
        let slots = plan.rows.iter().filter_map(|row| row.kernel.as_ref());
        let named = slots.chain(parts).any(|kernel| is_named(kernel, entry));
        if is_planned(plan, entry) && !named {
            complaints.push(format!("{entry} ran, which no slot of the plan names"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use engraft_core::inject::PlanRow;
    use engraft_core::mem::Float;

    fn plan(kernels: &[&str]) -> InjectionPlan {
        let row = |kernel: &&str| {
            let mut row = PlanRow::default();
            (row.layer, row.slot, row.op) = (Some(1), "up".into(), "linear");
            row.kernel = Some(kernel.to_string());
            row
        };
        let mut plan = InjectionPlan::empty("Some", "cuda:0", Float::F32);
        plan.rows = kernels.iter().map(row).collect();
        plan
    }

    fn ran(entries: &[&str]) -> Launches {
        entries.iter().map(|e| (e.to_string(), 3)).collect()
    }

    #[test]
    fn a_plan_is_held_to_what_ran() {
        let plan = plan(&["gemm_*_bf16"]);
        assert!(complaints(&plan, &[], &ran(&["gemm_n8_bf16", "rows_gather_wide"])).is_empty());
        let other = complaints(&plan, &[], &ran(&["linear_strict_bf16"]));
        assert_eq!(other.len(), 2, "{other:?}");
        assert!(other[0].contains("layer 1 up") && other[1].contains("linear_strict_bf16"), "{other:?}");
        assert_eq!(complaints(&plan, &[], &ran(&["gemm_n8_f16"])).len(), 2);
        // A composed slot has no kernel of its own; its parts' are named apart.
        let with_part = ran(&["gemm_n8_bf16", "embed_rows_f16"]);
        assert_eq!(complaints(&plan, &[], &with_part).len(), 1);
        assert!(complaints(&plan, &["embed_rows_f16".into()], &with_part).is_empty());
    }

    #[test]
    fn plain_families_run_nothing_else() {
        let mut plan = plan(&["gemm_*_bf16", "norm_fast_wide_bf16"]);
        let usual =
            ["gemm_n8_bf16", "norm_fast_wide_bf16", "rows_gather_wide", "elementwise_convert_bf16_f32"];
        for other in [
            "elementwise_activate_bf16",
            "elementwise_add_bf16",
            "elementwise_gate_bf16",
            "int8_rows",
            "kv_append",
            "norm_strict_narrow_bf16",
            "rope_heads_bf16",
        ] {
            plan.arch = "llama".into();
            assert!(complaints(&plan, &[], &ran(&usual)).is_empty());
            let ran = ran(&[&usual[..], &[other]].concat());
            let found = complaints(&plan, &[], &ran);
            assert!(found.len() == 1 && found[0].contains(other), "{found:?}");
            let mut composed = plan.clone();
            composed.rows[1].composed = Some("asked for".into());
            assert!(
                complaints(&composed, &[], &ran).is_empty(),
                "{other}: a composed slot runs other kernels"
            );
            plan.arch = "qwen3".into();
            assert!(complaints(&plan, &[], &ran).is_empty(), "{other}: not a plain family");
        }
    }

    #[test]
    fn names_have_any_number_of_stars() {
        for (name, entry, same) in [
            ("a_b", "a_b", true),
            ("a_b", "a_bc", false),
            ("a_*_f32_*", "a_whole_f32_128", true),
            ("a_*_f32_*", "a_whole_f16_128", false),
            ("a_*", "a_", true),
            ("a_* | b_*_f32", "b_n8_f32", true),
            ("a_* | b_*_f32", "b_n8_f16", false),
        ] {
            assert_eq!(is_named(name, entry), same, "{name} {entry}");
        }
    }

    #[test]
    fn counts_are_those_of_one_case() {
        let (before, after) = (ran(&["a"]), Launches::from([("a".into(), 3), ("b".into(), 2)]));
        assert_eq!(since(&before, &after), Launches::from([("b".into(), 2)]));
    }
}
