//! From a kernel to its text, and from the text to what a dispatch has to bring.

use crate::{ATTENTION_SLOTS, Attention, Dialect, Elem, Kernel, KvElem, Packing};
use minijinja::{Environment, Value, context};

const TEMPLATES: [(&str, &str); 30] = [
    ("prelude.wgsl", include_str!("../wgsl/prelude.wgsl")),
    ("division.wgsl", include_str!("../wgsl/division.wgsl")),
    ("math.wgsl", include_str!("../wgsl/math.wgsl")),
    ("packed.wgsl", include_str!("../wgsl/packed.wgsl")),
    ("matmul.wgsl", include_str!("../wgsl/matmul.wgsl")),
    ("embed.wgsl", include_str!("../wgsl/embed.wgsl")),
    ("linear.wgsl", include_str!("../wgsl/linear.wgsl")),
    ("linear_lanes.wgsl", include_str!("../wgsl/linear_lanes.wgsl")),
    ("quantize.wgsl", include_str!("../wgsl/quantize.wgsl")),
    ("moments.wgsl", include_str!("../wgsl/moments.wgsl")),
    ("norm.wgsl", include_str!("../wgsl/norm.wgsl")),
    ("norm_groups.wgsl", include_str!("../wgsl/norm_groups.wgsl")),
    ("rescale.wgsl", include_str!("../wgsl/rescale.wgsl")),
    ("elementwise.wgsl", include_str!("../wgsl/elementwise.wgsl")),
    ("picture.wgsl", include_str!("../wgsl/picture.wgsl")),
    ("rope.wgsl", include_str!("../wgsl/rope.wgsl")),
    ("rope_append.wgsl", include_str!("../wgsl/rope_append.wgsl")),
    ("rope_append_norm.wgsl", include_str!("../wgsl/rope_append_norm.wgsl")),
    ("index.wgsl", include_str!("../wgsl/index.wgsl")),
    ("codes.wgsl", include_str!("../wgsl/codes.wgsl")),
    ("kv.wgsl", include_str!("../wgsl/kv.wgsl")),
    ("attention.wgsl", include_str!("../wgsl/attention.wgsl")),
    ("attention_tile.wgsl", include_str!("../wgsl/attention_tile.wgsl")),
    ("moe.wgsl", include_str!("../wgsl/moe.wgsl")),
    ("rows.wgsl", include_str!("../wgsl/rows.wgsl")),
    ("sample.wgsl", include_str!("../wgsl/sample.wgsl")),
    ("probe.wgsl", include_str!("../wgsl/probe.wgsl")),
    ("mark.wgsl", include_str!("../wgsl/mark.wgsl")),
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

/// How a binding is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

/// A kernel's text, and what it says a dispatch has to bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// WGSL.
    pub text: String,
    /// Storage bindings of group 0, in order.
    pub bindings: Vec<Access>,
    /// Words of the parameters, the leading zero among them.
    pub words: usize,
    /// Which of them says what slice of the workgroups a dispatch has; none where it has all of them always.
    pub slice: Option<usize>,
}

impl Source {
    /// Reads bindings and parameters out of `text`; none where its bindings are not numbered from 0 on.
    fn of(text: String) -> Option<Self> {
        const BINDING: &str = "@group(0) @binding(";
        let mut found: Vec<(usize, Access)> = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix(BINDING)) {
            let (number, rest) = line.split_once(") var<storage, ")?;
            let (access, _) = rest.split_once('>')?;
            let access = if access == "read" { Access::Read } else { Access::Write };
            found.push((number.parse().ok()?, access));
        }
        found.sort_by_key(|(number, _)| *number);
        if found.iter().enumerate().any(|(i, (number, _))| i != *number) {
            return None;
        }
        let fields = text.split_once("struct Params {")?.1.split_once('}')?.0;
        let names: Vec<&str> =
            fields.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
        let (words, slice) = (names.len(), names.iter().position(|name| *name == "slice"));
        let bindings = found.into_iter().map(|(_, access)| access).collect();
        Some(Self { text, bindings, words, slice })
    }
}

/// The WGSL of `kernel` as `dialect` has it. Kernels with subgroups lack the line `enable subgroups;`, which
/// the standard demands and naga refuses.
///
/// # Errors
/// When the template is broken; the tests of this package render every kernel.
pub fn source(kernel: &Kernel, dialect: Dialect) -> Result<Source, RenderError> {
    let fail = |what: String| RenderError { kernel: kernel.label(), what };
    let text = rendered(kernel, dialect).map_err(|e| fail(format!("{e:#}")))?;
    // The type's name stands in a kernel that touches halves, and only with the dialect that knows it.
    let text = if text.contains("f16>") { format!("enable f16;\n{text}") } else { text };
    Source::of(text).ok_or_else(|| fail("bindings with gaps, or no parameters".into()))
}

fn rendered(kernel: &Kernel, dialect: Dialect) -> Result<String, minijinja::Error> {
    let mut env = Environment::new();
    // Seen by macros, too, which have no context of their own.
    env.add_global("strict", dialect.strict);
    let stem = format!("{}.wgsl", kernel.stem());
    add(&mut env, &stem)?;
    let template = env.get_template(&stem)?;
    let shared = context! { carrier => dialect.carrier.name(), dot => dialect.dot };
    let context = context! { ..options(kernel, dialect.f16), ..shared };
    let Kernel::Rows(name, x) = *kernel else { return template.render(context) };
    let x = [Value::from(elem(x, dialect.f16))];
    let of_words = moves().any(|found| found == Move { name, of_elements: false });
    let arguments = if of_words { &[] } else { &x[..] };
    template.render_captured(context)?.with_state_mut(|state| state.call_macro(name, arguments))
}

/// A macro of `rows.wgsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Its name.
    pub name: &'static str,
    /// Whether there is one per element type; else it moves words.
    pub of_elements: bool,
}

/// The kernels of `rows.wgsl`, as the template has them.
pub fn moves() -> impl Iterator<Item = Move> {
    const ROWS: &str = include_str!("../wgsl/rows.wgsl");
    let heads = ROWS.split("{%- macro ").skip(1).filter_map(|rest| rest.split_once(')'));
    heads.filter_map(|(head, _)| {
        let (name, arguments) = head.split_once('(')?;
        Some(Move { name, of_elements: !arguments.is_empty() })
    })
}

/// Adds a template and those that it imports: parsing all of them for every kernel takes longer than
/// rendering.
fn add(env: &mut Environment<'static>, name: &str) -> Result<(), minijinja::Error> {
    let Some((name, text)) = TEMPLATES.into_iter().find(|(known, _)| *known == name) else {
        return Ok(());
    };
    let text = read(name, text)?;
    env.add_template_owned(name, text.clone())?;
    let imports = text.split("import \"").skip(1).filter_map(|rest| rest.split_once('"'));
    imports.map(|(import, _)| import).try_for_each(|import| match env.get_template(import) {
        Ok(_) => Ok(()),
        Err(_) => add(env, import),
    })
}

/// A template as it is embedded, or from the folder that the environment names.
fn read(name: &str, embedded: &str) -> Result<String, minijinja::Error> {
    #[cfg(feature = "folder")]
    if let Some(folder) = std::env::var_os("ENGRAFT_WGSL") {
        let path = std::path::Path::new(&folder).join(name);
        let fail = |e| {
            minijinja::Error::new(minijinja::ErrorKind::TemplateNotFound, format!("{}: {e}", path.display()))
        };
        return std::fs::read_to_string(&path).map_err(fail);
    }
    let _ = name;
    Ok(embedded.to_owned())
}

/// An element type's name in templates; `h16` is an f16 by its own type.
fn elem(e: Elem, f16: bool) -> &'static str {
    if f16 && e == Elem::F16 { "h16" } else { e.name() }
}

/// What is asked for of pages.
fn pages(kv: KvElem, f16: bool) -> Value {
    context! { kv => kv.plain().map_or(kv.name(), |of| elem(of, f16)), coded => kv.plain().is_none() }
}

/// What the template of `kernel` asks for.
fn options(kernel: &Kernel, f16: bool) -> Value {
    let elem = |e: Elem| elem(e, f16);
    match *kernel {
        Kernel::Moe(how, x) => context! { how => how.name(), x => elem(x) },
        Kernel::Norm(how, x, reduce) => {
            context! { how => how.name(), x => elem(x), reduce => reduce.name() }
        }
        Kernel::Rescale(how, x, reduce) => {
            context! { how => how.name(), x => elem(x), reduce => reduce.name() }
        }
        Kernel::Elementwise(how, x, out) => {
            context! { how => how.name(), x => elem(x), out => elem(out) }
        }
        Kernel::Picture(how, x) => context! { how => how.name(), x => elem(x) },
        Kernel::Quantize(x) | Kernel::NormGroups(x) | Kernel::Rope(x) => context! { x => elem(x) },
        Kernel::RopeAppend(x, kv) => context! { x => elem(x), kv => elem(kv) },
        Kernel::RopeAppendNorm(x, kv, reduce) => {
            context! { x => elem(x), kv => elem(kv), reduce => reduce.name() }
        }
        Kernel::Index(how, x, kv) => context! { how => how.name(), x => elem(x), kv => elem(kv) },
        Kernel::Kv(how, x, kv) => context! { how => how.name(), x => elem(x), ..pages(kv, f16) },
        Kernel::Attention(how, x, kv) => {
            let Attention { dense, columns, capped, subgroups, distances } = how;
            context! { dense, distances, columns, capped, subgroups, x => elem(x), ..pages(kv, f16) }
        }
        Kernel::AttentionTile(columns, capped, x, kv) => {
            context! { slots => ATTENTION_SLOTS, columns, capped, x => elem(x), ..pages(kv, f16) }
        }
        Kernel::Limit(how) => context! { how => how.name() },
        Kernel::Rows(..) | Kernel::Sample | Kernel::Mark | Kernel::Probe | Kernel::Lanes => Value::from(()),
        Kernel::Embed { .. }
        | Kernel::Linear { .. }
        | Kernel::LinearLanes { .. }
        | Kernel::Experts { .. } => of_weight(kernel, f16),
    }
}

/// The same for kernels that read a packed weight.
fn of_weight(kernel: &Kernel, f16: bool) -> Value {
    let elem = |e: Elem| elem(e, f16);
    let packing = |w: Packing| match w {
        Packing::F16 if f16 => "h16",
        Packing::W8A8 => Packing::Q8_0.name(),
        _ => w.name(),
    };
    let bytes = kernel.of_bytes();
    match *kernel {
        Kernel::Embed { weight, out, add } => context! { weight => packing(weight), out => elem(out), add },
        Kernel::Linear { weight, x, out, rows, gate, vector, act } => {
            context! { weight => packing(weight), x => elem(x), out => elem(out), rows, gate, vector, act, bytes }
        }
        Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups } => {
            context! { weight => packing(weight), x => elem(x), out => elem(out), rows, gate, act, subgroups }
        }
        Kernel::Experts { weight, x, out, rows, vector, grouped } => {
            let experts = if grouped { "group" } else { "slot" };
            let (x, out, halves) = (elem(x), elem(out), context! { gate => false, act => false, experts });
            context! { weight => packing(weight), x, out, rows, vector, bytes, ..halves }
        }
        _ => Value::from(()),
    }
}
