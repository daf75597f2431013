//! From a kernel to its text.

use crate::{Attention, Carrier, Elementwise, Kernel, Kv, Moe, Norm, Reduce, Rows, Sample};
use minijinja::{Environment, Value, context};

const TEMPLATES: [(&str, &str); 18] = [
    ("prelude.wgsl", include_str!("../wgsl/prelude.wgsl")),
    ("math.wgsl", include_str!("../wgsl/math.wgsl")),
    ("packed.wgsl", include_str!("../wgsl/packed.wgsl")),
    ("product.wgsl", include_str!("../wgsl/product.wgsl")),
    ("embed.wgsl", include_str!("../wgsl/embed.wgsl")),
    ("linear.wgsl", include_str!("../wgsl/linear.wgsl")),
    ("linear_lanes.wgsl", include_str!("../wgsl/linear_lanes.wgsl")),
    ("norm.wgsl", include_str!("../wgsl/norm.wgsl")),
    ("elementwise.wgsl", include_str!("../wgsl/elementwise.wgsl")),
    ("rope.wgsl", include_str!("../wgsl/rope.wgsl")),
    ("rope_append.wgsl", include_str!("../wgsl/rope_append.wgsl")),
    ("kv.wgsl", include_str!("../wgsl/kv.wgsl")),
    ("attention.wgsl", include_str!("../wgsl/attention.wgsl")),
    ("moe.wgsl", include_str!("../wgsl/moe.wgsl")),
    ("rows.wgsl", include_str!("../wgsl/rows.wgsl")),
    ("sample.wgsl", include_str!("../wgsl/sample.wgsl")),
    ("probe.wgsl", include_str!("../wgsl/probe.wgsl")),
    ("lanes.wgsl", include_str!("../wgsl/lanes.wgsl")),
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

/// The WGSL of `kernel` with parameters carried by `carrier`.
///
/// # Errors
/// When the template is broken; the tests of this package render every kernel.
pub fn source(kernel: &Kernel, carrier: Carrier) -> Result<String, RenderError> {
    let fail = |e: minijinja::Error| RenderError { kernel: kernel.label(), what: format!("{e:#}") };
    let mut env = Environment::new();
    for (name, text) in TEMPLATES {
        env.add_template(name, text).map_err(fail)?;
    }
    let template = env.get_template(&format!("{}.wgsl", kernel.stem())).map_err(fail)?;
    let shared = context! { carrier => carrier.name(), fields => kernel.fields().to_vec() };
    template.render(context! { ..options(kernel), ..shared }).map_err(fail)
}

fn options(kernel: &Kernel) -> Value {
    match *kernel {
        Kernel::Embed { weight, out, add } => context! { weight => weight.name(), out => out.name(), add },
        Kernel::Linear { weight, x, out, rows, gate, vector, act } => {
            context! { weight => weight.name(), x => x.name(), out => out.name(), rows, gate, vector, act }
        }
        Kernel::Experts { weight, x, rows, vector } => {
            let experts = if rows == 1 { "slot" } else { "group" };
            let (x, halves) = (x.name(), context! { gate => false, act => false, experts });
            context! { weight => weight.name(), x, out => x, rows, vector, ..halves }
        }
        Kernel::Moe(how, x) => {
            let how = match how {
                Moe::Route => "route",
                Moe::Group => "group",
                Moe::Combine => "combine",
            };
            context! { how, x => x.name() }
        }
        Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups } => {
            context! { weight => weight.name(), x => x.name(), out => out.name(), rows, gate, act, subgroups }
        }
        Kernel::Norm(how, x, reduce) => {
            let how = match how {
                Norm::Alone => "alone",
                Norm::Add => "add",
                Norm::Heads => "heads",
            };
            let reduce = match reduce {
                Reduce::Leaves => "leaves",
                Reduce::Shared => "shared",
                Reduce::Subgroups => "subgroups",
            };
            context! { how, x => x.name(), reduce }
        }
        Kernel::Elementwise(how, x, out) => {
            let how = match how {
                Elementwise::Add => "add",
                Elementwise::Activate => "activate",
                Elementwise::Gate => "gate",
                Elementwise::Scale => "scale",
                Elementwise::Convert => "convert",
            };
            context! { how, x => x.name(), out => out.name() }
        }
        Kernel::Rope(x) => context! { x => x.name() },
        Kernel::RopeAppend(x, kv) => context! { x => x.name(), kv => kv.name() },
        Kernel::Kv(how, x, kv) => {
            let how = match how {
                Kv::Append => "append",
                Kv::Copy => "copy",
                Kv::Read => "read",
            };
            context! { how, x => x.name(), kv => kv.name() }
        }
        Kernel::Attention(how, x, kv) => {
            let Attention { dense, columns, capped, subgroups } = how;
            context! { dense, columns, capped, subgroups, x => x.name(), kv => kv.name() }
        }
        Kernel::Rows(how, x) => {
            let how = match how {
                Rows::Gather => "gather",
                Rows::Patch => "patch",
                Rows::MarkSeen => "mark_seen",
            };
            context! { how, x => x.name() }
        }
        Kernel::Sample(how, x) => {
            let how = match how {
                Sample::Argmax => "argmax",
                Sample::Draw => "draw",
            };
            context! { how, x => x.name() }
        }
        Kernel::Probe | Kernel::Lanes => Value::from(()),
    }
}
