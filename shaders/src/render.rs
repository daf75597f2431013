//! From a kernel to its text.

use crate::{
    ATTENTION_SLOTS, Attention, Dialect, Elem, Elementwise, Kernel, Kv, Limit, Moe, Norm, Packing, Rows,
    Sample,
};
use minijinja::{Environment, Value, context};

const TEMPLATES: [(&str, &str); 23] = [
    ("prelude.wgsl", include_str!("../wgsl/prelude.wgsl")),
    ("math.wgsl", include_str!("../wgsl/math.wgsl")),
    ("packed.wgsl", include_str!("../wgsl/packed.wgsl")),
    ("product.wgsl", include_str!("../wgsl/product.wgsl")),
    ("embed.wgsl", include_str!("../wgsl/embed.wgsl")),
    ("linear.wgsl", include_str!("../wgsl/linear.wgsl")),
    ("linear_lanes.wgsl", include_str!("../wgsl/linear_lanes.wgsl")),
    ("quantize.wgsl", include_str!("../wgsl/quantize.wgsl")),
    ("moments.wgsl", include_str!("../wgsl/moments.wgsl")),
    ("norm.wgsl", include_str!("../wgsl/norm.wgsl")),
    ("elementwise.wgsl", include_str!("../wgsl/elementwise.wgsl")),
    ("rope.wgsl", include_str!("../wgsl/rope.wgsl")),
    ("rope_append.wgsl", include_str!("../wgsl/rope_append.wgsl")),
    ("rope_append_norm.wgsl", include_str!("../wgsl/rope_append_norm.wgsl")),
    ("kv.wgsl", include_str!("../wgsl/kv.wgsl")),
    ("attention.wgsl", include_str!("../wgsl/attention.wgsl")),
    ("attention_tile.wgsl", include_str!("../wgsl/attention_tile.wgsl")),
    ("moe.wgsl", include_str!("../wgsl/moe.wgsl")),
    ("rows.wgsl", include_str!("../wgsl/rows.wgsl")),
    ("sample.wgsl", include_str!("../wgsl/sample.wgsl")),
    ("probe.wgsl", include_str!("../wgsl/probe.wgsl")),
    ("lanes.wgsl", include_str!("../wgsl/lanes.wgsl")),
    ("limit.wgsl", include_str!("../wgsl/limit.wgsl")),
];

/// A template that could not be rendered: a bug of this package.
#[derive(Debug)]
pub struct RenderError {
    /// The kernel's label.
    pub kernel: String,
    /// What the template engine said.
    pub what: String,
}

impl std::fmt::Display for RenderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shader {}: {}", self.kernel, self.what)
    }
}

impl std::error::Error for RenderError {}

/// The WGSL of `kernel` as `dialect` has it. Kernels with subgroups lack the line `enable subgroups;`, which the standard
/// demands and naga refuses.
///
/// # Errors
/// When the template is broken; the tests of this package render every kernel.
pub fn source(kernel: &Kernel, dialect: Dialect) -> Result<String, RenderError> {
    let fail = |e: minijinja::Error| RenderError { kernel: kernel.label(), what: format!("{e:#}") };
    let mut env = Environment::new();
    let stem = format!("{}.wgsl", kernel.stem());
    add(&mut env, &stem).map_err(fail)?;
    let template = env.get_template(&stem).map_err(fail)?;
    let shared = context! { carrier => dialect.carrier.name(), fields => kernel.fields().to_vec(), dot => dialect.dot };
    let text = template.render(context! { ..options(kernel, dialect.f16), ..shared }).map_err(fail)?;
    // The type's name stands in a kernel that touches halves, and only with the dialect that knows it.
    Ok(if text.contains("f16>") { format!("enable f16;\n{text}") } else { text })
}

/// Adds a template and those that it imports: parsing all of them for every kernel takes longer than rendering.
fn add(env: &mut Environment<'static>, name: &str) -> Result<(), minijinja::Error> {
    let Some((name, text)) = TEMPLATES.into_iter().find(|(known, _)| *known == name) else {
        return Ok(());
    };
    env.add_template(name, text)?;
    let imports = text.split("import \"").skip(1).filter_map(|rest| rest.split_once('"'));
    imports.map(|(import, _)| import).try_for_each(|import| match env.get_template(import) {
        Ok(_) => Ok(()),
        Err(_) => add(env, import),
    })
}

/// What the template of `kernel` asks for; `h16` is an f16 by its own type.
fn options(kernel: &Kernel, f16: bool) -> Value {
    let elem = |e: Elem| if f16 && e == Elem::F16 { "h16" } else { e.name() };
    let packing = |w: Packing| match w {
        Packing::F16 if f16 => "h16",
        Packing::W8A8 => Packing::Q8_0.name(),
        _ => w.name(),
    };
    match *kernel {
        Kernel::Embed { weight, out, add } => context! { weight => packing(weight), out => elem(out), add },
        Kernel::Linear { weight, x, out, rows, gate, vector, act } => {
            let bytes = weight == Packing::W8A8;
            context! { weight => packing(weight), x => elem(x), out => elem(out), rows, gate, vector, act, bytes }
        }
        Kernel::Experts { weight, x, rows, vector } => {
            let experts = if rows == 1 { "slot" } else { "group" };
            let (x, halves) = (elem(x), context! { gate => false, act => false, experts });
            let bytes = weight == Packing::W8A8;
            context! { weight => packing(weight), x, out => x, rows, vector, bytes, ..halves }
        }
        Kernel::Moe(how, x) => {
            let how = match how {
                Moe::Route => "route",
                Moe::Group => "group",
                Moe::Combine => "combine",
            };
            context! { how, x => elem(x) }
        }
        Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups } => {
            context! { weight => packing(weight), x => elem(x), out => elem(out), rows, gate, act, subgroups }
        }
        Kernel::Norm(how, x, reduce) => {
            let how = match how {
                Norm::Alone => "alone",
                Norm::Add => "add",
                Norm::Heads => "heads",
            };
            context! { how, x => elem(x), reduce => reduce.name() }
        }
        Kernel::Elementwise(how, x, out) => {
            let how = match how {
                Elementwise::Add => "add",
                Elementwise::Activate => "activate",
                Elementwise::Gate => "gate",
                Elementwise::Scale => "scale",
                Elementwise::Convert => "convert",
            };
            context! { how, x => elem(x), out => elem(out) }
        }
        Kernel::Quantize(x) => context! { x => elem(x) },
        Kernel::Rope(x) => context! { x => elem(x) },
        Kernel::RopeAppend(x, kv) => context! { x => elem(x), kv => elem(kv) },
        Kernel::RopeAppendNorm(x, kv, reduce) => {
            context! { x => elem(x), kv => elem(kv), reduce => reduce.name() }
        }
        Kernel::Kv(how, x, kv) => {
            let how = match how {
                Kv::Append => "append",
                Kv::Copy => "copy",
                Kv::Read => "read",
            };
            context! { how, x => elem(x), kv => elem(kv) }
        }
        Kernel::Attention(how, x, kv) => {
            let Attention { dense, columns, capped, subgroups } = how;
            context! { dense, columns, capped, subgroups, x => elem(x), kv => elem(kv) }
        }
        Kernel::AttentionTile(columns, capped, x, kv) => {
            context! { slots => ATTENTION_SLOTS, columns, capped, x => elem(x), kv => elem(kv) }
        }
        Kernel::Rows(how, x) => {
            let how = match how {
                Rows::Gather => "gather",
                Rows::Patch => "patch",
                Rows::MarkSeen => "mark_seen",
            };
            context! { how, x => elem(x) }
        }
        Kernel::Sample(how, x) => {
            let how = match how {
                Sample::Argmax => "argmax",
                Sample::Draw => "draw",
            };
            context! { how, x => elem(x) }
        }
        Kernel::Limit(Limit::Read) => context! { how => "read" },
        Kernel::Limit(Limit::Multiply) => context! { how => "multiply" },
        Kernel::Probe | Kernel::Lanes => Value::from(()),
    }
}
