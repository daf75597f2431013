//! `route`, `expert_linear` and `combine`: choosing experts, their matmuls, their sum.

use super::packed::PackedCases;
use super::weight::{self, FORMATS};
use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::{Device, Matrix};
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::{ORACLE, STRICT};
use crate::oracle::moe as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, WeightFormat, WeightUse};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, Groups, MoeOp, MoeOpKind, Op, OpKind};
use engraft_core::params::{ExpertGroups, ExpertShare, GroupRank, Router, RouterScore};
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Route);
    visitor.visit(ExpertLinear);
    visitor.visit(Combine);
}

/// Logits of experts.
#[derive(Debug, Clone)]
pub struct RouteCase {
    /// `[tokens, experts]`, f32.
    pub logits: Grid,
    /// How experts are chosen.
    pub router: Router,
    /// `[experts]`, added for the choice alone.
    pub choice_bias: Option<Vec<f32>>,
    lay: Lay,
}

/// Logits and a bias of the choice by scores. Scores of other logits, and their sums with other biases, are
/// further apart than they are off, so that an oracle chooses the same experts.
fn far_apart(dice: &mut Dice, router: Router, logits: &mut Grid) -> Option<Vec<f32>> {
    let span = if router.score == RouterScore::Softmax { 24 } else { 64 };
    let step = |dice: &mut Dice, span: usize| dice.below(2 * span + 1) as f32 - span as f32;
    logits.values.iter_mut().for_each(|v| *v = (step(dice, span) + 0.25) / 16.0);
    let scale = if router.score == RouterScore::Softmax { 1.0 / router.experts as f32 } else { 1.0 };
    router.choice_bias.then(|| (0..router.experts).map(|_| step(dice, 3) * 0.25 * scale).collect())
}

/// `route`.
#[derive(Debug, Clone, Copy)]
pub struct Route;

impl OpSpec for Route {
    type Case = RouteCase;
    fn kind(&self) -> OpKind {
        MoeOpKind::Route.into()
    }
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32]
    }
    fn sample(&self, _: Float, dice: &mut Dice) -> RouteCase {
        let rank = dice.turn(&[None, Some(GroupRank::BestTwo), None, Some(GroupRank::Best)]);
        let counts: &[usize] =
            if rank.is_some() { &[1, 8, 12, 24, 64] } else { &[1, 2, 3, 4, 6, 8, 17, 60, 64, 129] };
        let (tokens, experts) = (dice.rows(), dice.pick(counts));
        let top_k = (1 + dice.below(experts.min(9))).min(experts);
        let scale = dice.pick(&[0.1, 1.0, 8.0, 60.0]);
        let mut logits = Grid::random(dice, tokens, experts, Float::F32, scale);
        if dice.once_in(3) {
            // Equals: the lowest must win.
            logits.values.iter_mut().for_each(|v| *v = v.round());
        }
        let mut router =
            Router::new(experts, top_k, dice.pick(&[RouterScore::Softmax, RouterScore::Sigmoid]));
        (router.renormalise, router.scale) = (dice.once_in(2), dice.pick(&[1.0, 2.5]));
        (router.choice_bias, router.groups) =
            (dice.once_in(3), rank.map(|rank| groups_of(dice, (experts, top_k), rank)));
        if dice.turn(&[false, false, true, false]) {
            // Of logits on a grid none is as near as this to the bit.
            let near = Some(dice.pick(&[0.02, 0.2, 1.7]));
            router =
                Router { near, scale: router.scale, ..Router::new(experts, top_k, RouterScore::Softmax) };
            far_apart(dice, router, &mut logits);
        }
        let choice_bias = match router.is_by_score() {
            true => far_apart(dice, router, &mut logits),
            false => None,
        };
        RouteCase { logits, router, choice_bias, lay: Lay::random(dice) }
    }
    /// The routers of models with hundreds of experts, and a prompt of thousands of tokens.
    fn large(&self, _: Float, dice: &mut Dice) -> Vec<RouteCase> {
        let softmax = Router::new(128, 8, RouterScore::Softmax);
        let many = Router { renormalise: true, ..Router::new(512, 10, RouterScore::Softmax) };
        // A workgroup of wgpu counts the slots of 1,024 experts; so many are chosen by score at most.
        let most = Router { choice_bias: true, ..Router::new(Router::MAX_BY_SCORE, 8, RouterScore::Sigmoid) };
        let more =
            [-1, 0, 1].map(|by| Router::new(1024usize.saturating_add_signed(by), 64, RouterScore::Softmax));
        let groups = Some(ExpertGroups { count: 8, chosen: 4, rank: GroupRank::BestTwo });
        let deepseek =
            Router { choice_bias: true, groups, scale: 2.5, ..Router::new(256, 8, RouterScore::Sigmoid) };
        let sizes = [(4097, softmax), (9, many), (33, deepseek), (5, most)];
        let cases = sizes.into_iter().chain(more.map(|router| (3, router)));
        let of = |(tokens, router): (usize, Router)| {
            let mut logits = Grid::random(dice, tokens, router.experts, Float::F32, 8.0);
            let choice_bias = router.is_by_score().then(|| far_apart(dice, router, &mut logits)).flatten();
            RouteCase { logits, router, choice_bias, lay: Lay::random(dice) }
        };
        cases.map(of).collect()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &RouteCase) -> Result<Vec<Output>> {
        let (tokens, k) = (case.logits.rows, case.router.top_k);
        let (logits, bias) = (dev.grid(&case.logits)?, dev.vector_opt(case.choice_bias.as_ref())?);
        let mut weights = dev.output(tokens, k, Float::F32, case.lay)?;
        let (mut experts, mut groups) =
            (dev.words(tokens * k)?, dev.words(case.router.experts + 1 + tokens * k)?);
        dev.launch(|to| {
            let (logits, router, weights) = (logits.view()?, case.router, weights.view_mut()?);
            let (experts, groups) = (experts.view_mut(), groups.view_mut());
            to.run(ops::Route { logits, router, choice_bias: bias.as_ref(), experts, weights, groups })
        })?;
        let mut chosen = dev.read_words(&experts, "experts")?;
        chosen.rows = tokens;
        Ok(vec![chosen, dev.read(&weights, "weights")?, dev.read_words(&groups, "groups")?])
    }
    fn oracle(&self, case: &RouteCase, _: Madd) -> Vec<Want> {
        oracle::route(case)
    }
    fn alone(&self, case: &RouteCase, dice: &mut Dice) -> Option<Part<RouteCase>> {
        let r = dice.below(case.logits.rows);
        Some((RouteCase { logits: case.logits.only(r), ..case.clone() }, vec![r..r + 1, r..r + 1]))
    }
    fn relaid(&self, case: &RouteCase, dice: &mut Dice) -> Option<RouteCase> {
        let logits = Grid { lay: Lay::random(dice), ..case.logits.clone() };
        Some(RouteCase { logits, lay: Lay::random(dice), ..case.clone() })
    }
}

/// Groups of experts, not all of which are chosen where fewer hold enough.
fn groups_of(dice: &mut Dice, (experts, top_k): (usize, usize), rank: GroupRank) -> ExpertGroups {
    let counts: Vec<usize> = (1..=ExpertGroups::MAX).filter(|count| experts.is_multiple_of(*count)).collect();
    let count = dice.pick(&counts);
    let least = top_k.div_ceil(experts / count);
    let chosen = least + dice.below((count - least).max(1));
    ExpertGroups { count, chosen, rank }
}

/// Rows on their way to experts.
#[derive(Debug, Clone)]
pub struct ExpertCase {
    /// `[tokens, k]` or `[slots, k]`.
    pub x: Grid,
    /// `[experts * n, k]`.
    pub w: Matrix,
    /// `[experts * n]`.
    pub bias: Option<Vec<f32>>,
    /// Experts.
    pub count: usize,
    /// `[tokens * top_k]`.
    pub experts: Vec<u32>,
    /// Experts per token.
    pub top_k: usize,
    /// Grain of the leaves.
    pub grain: usize,
    parts: usize,
    lay: Lay,
}

impl ExpertCase {
    /// Slots that share a row of x.
    pub fn per_row(&self) -> usize {
        self.experts.len() / self.x.rows
    }

    fn tokens(&self) -> usize {
        self.experts.len() / self.top_k
    }

    fn generate(dtype: Float, dice: &mut Dice, format: WeightFormat, k: usize) -> Self {
        let (count, n) = (dice.pick(&[1, 2, 3, 5, 8]), dice.pick(&[1, 2, 15, 16, 33]));
        let top_k = 1 + dice.below(count.min(3));
        let tokens = dice.rows();
        Self::of_size(dtype, dice, format, [count, top_k], [tokens, n, k])
    }

    /// Many experts of few outputs with long sums, or two of thousands of outputs.
    fn sized(dtype: Float, dice: &mut Dice, format: WeightFormat, [tokens, n, k]: [usize; 3]) -> Self {
        match n {
            4096.. => Self::of_size(dtype, dice, format, [2, 1], [tokens, n, weight::columns(format, 289)]),
            _ => Self::of_size(dtype, dice, format, [9, 3], [tokens, n, k]),
        }
    }

    fn of_size(
        dtype: Float,
        dice: &mut Dice,
        format: WeightFormat,
        [count, top_k]: [usize; 2],
        [tokens, n, k]: [usize; 3],
    ) -> Self {
        let experts = experts_of(dice, tokens, top_k, count);
        let rows = if dice.once_in(2) { tokens } else { experts.len() };
        let scale = dice.scale(dtype);
        ExpertCase {
            x: Grid::random(dice, rows, k, dtype, scale),
            w: weight::random(dice, count * n, k, format, 1.0),
            bias: dice.once_in(2).then(|| dice.values(count * n, scale, Float::F32)),
            grain: dice.pick(&[1, 8, 64]),
            parts: 1 + dice.below(2),
            lay: Lay::random(dice),
            count,
            experts,
            top_k,
        }
    }
}

impl PackedCases for ExpertLinear {
    const NAME: &'static str = "expert_linear_packed";
    fn generate(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, k: usize) -> ExpertCase {
        ExpertCase::generate(dtype, dice, format, k)
    }
    fn of_size(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, size: [usize; 3]) -> ExpertCase {
        ExpertCase::sized(dtype, dice, format, size)
    }
}

/// `expert_linear`.
#[derive(Debug, Clone, Copy)]
pub struct ExpertLinear;

impl OpSpec for ExpertLinear {
    type Case = ExpertCase;
    fn kind(&self) -> OpKind {
        MoeOpKind::ExpertLinear.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> ExpertCase {
        let format = dice.pick(&FORMATS);
        let k = weight::columns(format, dice.pick(&[1, 7, 33, 64, 111]));
        ExpertCase::generate(dtype, dice, format, k)
    }
    fn sizes(&self) -> usize {
        2 * FORMATS.len()
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> ExpertCase {
        let (turn, [rows, n]) = weight::sized(at, FORMATS.len());
        let format = FORMATS[turn];
        ExpertCase::sized(dtype, dice, format, [rows, n, weight::long(format, turn)])
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &ExpertCase) -> Result<Vec<Output>> {
        let used_for = WeightUse::Experts { count: case.count, grain: case.grain };
        let (w, bias) = (dev.weight(&case.w, used_for, case.parts)?, dev.vector_opt(case.bias.as_ref())?);
        let (x, experts) = (dev.grid(&case.x)?, dev.buffer(&case.experts)?);
        let groups = dev.buffer(&oracle::groups(&case.experts, case.count))?;
        let mut out = dev.output(case.experts.len(), case.w.rows / case.count, case.x.dtype, case.lay)?;
        dev.launch(|to| {
            let groups = Groups { experts: experts.view(), groups: groups.view(), count: case.count };
            let (x, bias, out) = (x.view()?, bias.as_ref(), out.view_mut()?);
            to.run(ops::ExpertLinear { x, weight: &w, bias, groups, first: 0, out })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &ExpertCase, _: Madd) -> Vec<Want> {
        vec![oracle::expert_linear(case)]
    }
    fn strict(&self, case: &ExpertCase, madd: Madd) -> Option<Vec<Want>> {
        Some(vec![Want::Exact(oracle::expert_linear_strict(case, madd))])
    }
    fn alone(&self, case: &ExpertCase, dice: &mut Dice) -> Option<Part<ExpertCase>> {
        let t = dice.below(case.tokens());
        let slots = t * case.top_k..(t + 1) * case.top_k;
        let per_row = case.per_row();
        let x = case.x.slice(slots.start / per_row..slots.end / per_row);
        let experts = case.experts[slots.clone()].to_vec();
        Some((ExpertCase { x, experts, ..case.clone() }, vec![slots]))
    }
    fn relaid(&self, case: &ExpertCase, dice: &mut Dice) -> Option<ExpertCase> {
        let x = Grid { lay: Lay::random(dice), ..case.x.clone() };
        Some(ExpertCase { x, lay: Lay::random(dice), ..case.clone() })
    }
}

/// Experts of every slot, ascending within a token.
fn experts_of(dice: &mut Dice, tokens: usize, top_k: usize, count: usize) -> Vec<u32> {
    let of_token = |_| {
        let mut chosen: Vec<usize> = dice.shuffled(count)[..top_k].to_vec();
        chosen.sort_unstable();
        chosen.into_iter().map(|e| e as u32)
    };
    (0..tokens).flat_map(of_token).collect()
}

impl CombineCase {
    /// Whether a slot's result is added here.
    pub fn counts(&self, slot: usize) -> bool {
        let own =
            |(experts, share): &(Vec<u32>, ExpertShare)| share.experts().contains(&(experts[slot] as usize));
        self.chosen.as_ref().is_none_or(own)
    }

    fn of_size(dtype: Float, dice: &mut Dice, [tokens, top_k, cols]: [usize; 3]) -> Self {
        let count = top_k + dice.pick(&[0, 1, 5, 56]);
        let world = dice.pick(&[1, 1, 1, 2, 4, 8]);
        let share = ExpertShare::of_rank(count, dice.below(world), world);
        let chosen = share.ok().filter(|share| share.is_part() || !dice.once_in(4));
        let out = if chosen.is_some_and(|share| share.is_part()) { Float::F32 } else { dtype };
        let mut case = Self {
            y: Grid::random(dice, tokens * top_k, cols, dtype, 2.0),
            weights: Grid::random(dice, tokens, top_k, Float::F32, 1.0),
            add: out == dtype && dice.once_in(2),
            out: Grid::random(dice, tokens, cols, out, 2.0),
            chosen: chosen.map(|share| (experts_of(dice, tokens, top_k, count), share)),
        };
        // What other ranks have is not here.
        for slot in 0..tokens * top_k {
            if !case.counts(slot) {
                case.y.values[slot * cols..(slot + 1) * cols].fill(f32::NAN);
            }
        }
        case.add &= !chosen.is_some_and(|share| share.is_part());
        case
    }
}

/// Results of experts on their way to a sum.
#[derive(Debug, Clone)]
pub struct CombineCase {
    /// `[tokens * top_k, cols]`.
    pub y: Grid,
    /// `[tokens, top_k]`, f32.
    pub weights: Grid,
    /// The experts of slots, and whose results are added: those of a rank have f32 sums.
    pub chosen: Option<(Vec<u32>, ExpertShare)>,
    /// Whether the sum is added to what is there.
    pub add: bool,
    /// `[tokens, cols]`, what is there.
    pub out: Grid,
}

/// `combine`.
#[derive(Debug, Clone, Copy)]
pub struct Combine;

impl OpSpec for Combine {
    type Case = CombineCase;
    fn kind(&self) -> OpKind {
        MoeOpKind::Combine.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> CombineCase {
        let sizes = [dice.rows(), dice.pick(&[1, 2, 3, 8]), dice.size()];
        CombineCase::of_size(dtype, dice, sizes)
    }
    /// Rows of models, and one value wider; a prompt's rows of many experts.
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<CombineCase> {
        [[3, 8, 4097], [1, 2, 16_384], [257, 9, 65]]
            .map(|size| CombineCase::of_size(dtype, dice, size))
            .into()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &CombineCase) -> Result<Vec<Output>> {
        let (y, weights) = (dev.grid(&case.y)?, dev.grid(&case.weights)?);
        // Without `add` nothing may be read from the output.
        let mut out = match case.add {
            true => dev.grid(&case.out)?,
            false => dev.output(case.out.rows, case.out.cols, case.out.dtype, case.out.lay)?,
        };
        let add = case.add;
        let experts = case.chosen.as_ref().map(|(experts, _)| dev.buffer(experts)).transpose()?;
        let share = case.chosen.as_ref().map(|(_, share)| *share);
        dev.launch(|to| {
            let chosen =
                experts.as_ref().zip(share).map(|(e, share)| ops::Chosen { experts: e.view(), share });
            let (y, weights, out) = (y.view()?, weights.view()?, out.view_mut()?);
            to.run(ops::Combine { y, weights, chosen, add, out })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &CombineCase, _: Madd) -> Vec<Want> {
        vec![oracle::combine(case)]
    }
    fn strict(&self, case: &CombineCase, madd: Madd) -> Option<Vec<Want>> {
        Some(vec![Want::Exact(oracle::combine_strict(case, madd))])
    }
    fn alone(&self, case: &CombineCase, dice: &mut Dice) -> Option<Part<CombineCase>> {
        let (r, k) = (dice.below(case.out.rows), case.weights.cols);
        let y = case.y.slice(r * k..(r + 1) * k);
        let chosen = case.chosen.as_ref().map(|(all, share)| (all[r * k..(r + 1) * k].to_vec(), *share));
        let (weights, out) = (case.weights.only(r), case.out.only(r));
        let part = CombineCase { y, weights, chosen, out, add: case.add };
        Some((part, vec![r..r + 1]))
    }
    fn relaid(&self, case: &CombineCase, dice: &mut Dice) -> Option<CombineCase> {
        let mut case = case.clone();
        for grid in [&mut case.y, &mut case.weights, &mut case.out] {
            grid.lay = Lay::random(dice);
        }
        Some(case)
    }
}

/// Planted in what concerns experts.
pub const BUGS: &[Bug] = &[
    Bug::new("RouteNextExpert", "route", ORACLE, next_expert),
    Bug::new("RouteForgetsScale", "route", ORACLE, forgets_scale),
    Bug::new("RouteChoosesWithoutBias", "route", ORACLE, forgets_bias),
    Bug::new("RouteForgetsWhatIsNear", "route", ORACLE, forgets_near),
    Bug::new("RouteForgetsGroups", "route", ORACLE, forgets_groups),
    Bug::new("RouteRanksByTheBest", "route", ORACLE, ranks_by_best),
    Bug::new("ExpertLinearDropsBias", "expert_linear", ORACLE, drops_bias),
    Bug::new("ExpertLinearLastBit", "expert_linear", STRICT, last_bit),
    Bug::new("CombineOverwrites", "combine", ORACLE, overwrites),
    Bug::new("CombineInOneChain", "combine", STRICT, one_chain),
    Bug::new("CombineAddsAllRanks", "combine", ORACLE, all_ranks),
];

fn next_expert(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Route(mut op)) = op else { return s.run(op) };
    let ops::Route { logits, router, choice_bias, weights, groups, .. } = op;
    s.run(ops::Route { logits, router, choice_bias, experts: op.experts.reborrow(), weights, groups })?;
    let experts: Vec<u32> = s.words(op.experts.as_ref())?;
    let next: Vec<u32> = experts.iter().map(|e| (e + 1) % router.experts as u32).collect();
    s.upload(&next, op.experts)
}

fn forgets_scale(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Route(mut op)) = op else { return s.run(op) };
    op.router.scale = 1.0;
    s.run(op)
}

fn forgets_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Route(mut op)) = op else { return s.run(op) };
    (op.router.choice_bias, op.choice_bias) = (false, None);
    s.run(op)
}

fn forgets_near(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Route(mut op)) = op else { return s.run(op) };
    op.router.near = None;
    s.run(op)
}

fn forgets_groups(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Route(mut op)) = op else { return s.run(op) };
    op.router.groups = None;
    s.run(op)
}

fn ranks_by_best(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Route(mut op)) = op else { return s.run(op) };
    if let Some(groups) = &mut op.router.groups {
        groups.rank = GroupRank::Best;
    }
    s.run(op)
}

fn drops_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::ExpertLinear(op)) = op else { return s.run(op) };
    s.run(ops::ExpertLinear { bias: None, ..op })
}

fn last_bit(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::ExpertLinear(op)) = op else { return s.run(op) };
    let out = s.spot(op.out.as_ref())?;
    s.run(op)?;
    s.nudge_all(out)
}

fn overwrites(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Combine(op)) = op else { return s.run(op) };
    s.run(ops::Combine { add: false, ..op })
}

fn one_chain(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Combine(op)) = op else { return s.run(op) };
    let part = op.chosen.is_some_and(|chosen| chosen.share.is_part());
    s.run(ops::Combine { chosen: op.chosen.filter(|_| part), ..op })
}

fn all_ranks(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Moe(MoeOp::Combine(mut op)) = op else { return s.run(op) };
    if let Some(chosen) = &mut op.chosen {
        chosen.share = ExpertShare::whole(chosen.share.count());
    }
    s.run(op)
}

/// Rows may be those of slots or of tokens.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new(
        "expert_linear",
        "x",
        Field::Rows,
        "a row per slot, per token, or per as many slots as divide them",
    ),
    Lawful::new("combine", "y", Field::Dtype, "any element type goes into an f32 sum"),
    Lawful::new("combine", "out", Field::Dtype, "a sum has the slots' element type, or is f32"),
];
