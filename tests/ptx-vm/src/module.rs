//! A parsed module, and its instance in a memory.
//!
//! [`Module::parse`] reads the text once and lowers every kernel to the machine's own instructions, so that
//! an unknown opcode is an error here, with its line, and never a surprise in the middle of a launch. A
//! [`Module`] has no memory; [`Instance::load`] gives its `.global` and `.const` variables addresses in a
//! [`Memory`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::code::{Program, SHARED_START};
use crate::lower::Context;
use crate::text::parser;
use crate::text::syntax::{Function, Initial, Item, Linkage, Space};
use crate::{Error, Memory, lower, mutant, reached};

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// Its offset in the parameter block, in bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub bytes: u32,
}

/// A kernel (`.entry`).
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The mangled name, as launches give it.
    pub name: String,
    /// The parameters in order.
    pub parameters: Vec<Parameter>,
    /// The size of the parameter block in bytes.
    pub parameter_bytes: u32,
    /// Shared memory declared with a size, in bytes.
    pub static_shared: u32,
    /// The kernel uses `extern __shared__` memory.
    pub uses_dynamic_shared: bool,
    /// The kernel calls `malloc` or `free`.
    pub uses_heap: bool,
    /// Local memory per thread, in bytes.
    pub local_bytes: u32,
    /// 32-bit registers per thread that the text declares, 255 at most (ptxas reuses them and needs fewer).
    pub registers: u32,
    /// `.maxnreg`: 32-bit registers per thread at most.
    pub max_registers: Option<u32>,
    /// `.maxntid`: threads per block at most.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: threads per block exactly.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub min_blocks: Option<u32>,
    /// `.reqnctapercluster`.
    pub required_cluster: Option<[u32; 3]>,
    /// `.maxclusterrank`.
    pub max_cluster: Option<u32>,
}

impl Kernel {
    /// Lays out arguments as the kernel's parameter block.
    ///
    /// # Errors
    /// [`Error::Argument`] when the number of arguments or the size of one is not the kernel's.
    pub fn pack(&self, arguments: &[&[u8]]) -> Result<Vec<u8>, Error> {
        if arguments.len() != self.parameters.len() {
            return Err(Error::Argument(format!(
                "kernel `{}` takes {} parameters, {} given",
                self.name,
                self.parameters.len(),
                arguments.len()
            )));
        }
        let mut block = vec![0; self.parameter_bytes as usize];
        for (value, parameter) in arguments.iter().zip(&self.parameters) {
            if value.len() != parameter.bytes as usize {
                return Err(Error::Argument(format!(
                    "parameter `{}` of kernel `{}` has {} bytes, {} given",
                    parameter.name,
                    self.name,
                    parameter.bytes,
                    value.len()
                )));
            }
            block[parameter.offset as usize..][..value.len()].copy_from_slice(value);
        }
        Ok(block)
    }
}

/// A `.global` or `.const` variable of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// It is in constant memory.
    pub constant: bool,
}

/// A parsed module.
#[derive(Debug, Clone)]
pub struct Module {
    /// The PTX version, `[major, minor]`.
    pub version: [u32; 2],
    /// The target, such as `sm_90a`.
    pub target: String,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) programs: Vec<Program>,
    pub(crate) globals: Vec<Global>,
    initial: Vec<Initialiser>,
    pub(crate) units: reached::Units,
}

/// A variable's initial value.
#[derive(Debug, Clone)]
struct Initialiser {
    width: u32,
    values: Vec<Initial>,
    line: u32,
}

fn describe(f: &Function, program: &Program, parameters: Vec<Parameter>) -> Kernel {
    let numbers = |name: &str| f.directives.iter().find(|d| d.0 == name).map(|d| &d.1[..]);
    let three = |name: &str| numbers(name).map(|n| std::array::from_fn(|i| n.get(i).copied().unwrap_or(1)));
    let one = |name: &str| numbers(name).and_then(|n| n.first().copied());
    Kernel {
        name: f.name.clone(),
        parameters,
        parameter_bytes: program.parameter_bytes,
        static_shared: program.shared_end - SHARED_START,
        uses_dynamic_shared: program.dynamic.is_some(),
        uses_heap: program.heap,
        local_bytes: program.local_bytes,
        registers: program.units.min(255),
        max_registers: one(".maxnreg"),
        max_threads: three(".maxntid"),
        required_threads: three(".reqntid"),
        min_blocks: one(".minnctapersm"),
        required_cluster: three(".reqnctapercluster"),
        max_cluster: one(".maxclusterrank"),
    }
}

impl Module {
    /// Parses and lowers a PTX text, with the [mutant] that the environment names.
    ///
    /// # Errors
    /// [`Error::Syntax`] or [`Error::Unsupported`] with the line; [`Error::Argument`] when the environment
    /// names a file that holds no mutant.
    pub fn parse(text: &str) -> Result<Module, Error> {
        let text = mutant::read(text).map_err(Error::Argument)?;
        let file = parser::parse(&text)?;
        let mut module = Module {
            version: file.version,
            target: file.target.clone(),
            kernels: vec![],
            programs: vec![],
            globals: vec![],
            initial: vec![],
            units: reached::units(&text),
        };
        for v in file.variables.iter().filter(|v| matches!(v.space, Space::Global | Space::Const)) {
            if v.linkage == Linkage::Extern {
                return Err(Error::Unsupported {
                    line: v.line,
                    text: v.name.clone(),
                    what: "a variable of another text: link the texts first".into(),
                });
            }
            module.globals.push(Global {
                name: v.name.clone(),
                bytes: v.bytes(),
                constant: v.space == Space::Const,
            });
            module.initial.push(Initialiser { width: v.ty.bytes(), values: v.initial.clone(), line: v.line });
        }
        let context = Context::new(&file, &text);
        let functions = &context.functions;
        for (v, initial) in module.globals.iter().zip(&mut module.initial) {
            for value in &mut initial.values {
                if let Initial::Address(name, offset) = value
                    && context.global(name).is_none()
                    && let Some(index) = functions.get(name)
                {
                    *value = Initial::Bits(functions.address(index).wrapping_add_signed(*offset));
                }
            }
            if initial.values.len() as u64 * u64::from(initial.width) > v.bytes {
                return Err(Error::Syntax {
                    line: initial.line,
                    what: format!("`{}` has more initial values than elements", v.name),
                });
            }
            let unknown = initial.values.iter().find_map(|v| match v {
                Initial::Address(name, _) if context.global(name).is_none() => Some(name),
                _ => None,
            });
            if let Some(name) = unknown {
                return Err(Error::Missing { kind: "global", name: name.clone() });
            }
        }
        for f in file.functions.iter().filter(|f| f.entry && f.body.is_some()) {
            let (program, parameters) = lower::kernel(&context, f)?;
            module.kernels.push(describe(f, &program, parameters));
            module.programs.push(program);
        }
        Ok(module)
    }

    /// Everything in the text that this machine does not execute, instruction by instruction.
    ///
    /// # Errors
    /// [`Error::Syntax`].
    pub fn refusals(text: &str) -> Result<Vec<Error>, Error> {
        let file = parser::parse(text)?;
        let context = Context::new(&file, text);
        let kernels = file.functions.iter().filter(|f| f.entry && f.body.is_some());
        Ok(kernels.flat_map(|f| lower::refusals(&context, f)).collect())
    }

    /// The opcodes of the text, each with the number of times it stands there, ascending.
    ///
    /// # Errors
    /// [`Error::Syntax`].
    pub fn opcodes(text: &str) -> Result<BTreeMap<String, usize>, Error> {
        fn count(items: &[Item], out: &mut BTreeMap<String, usize>) {
            for item in items {
                match item {
                    Item::Instruction(i) => *out.entry(i.opcode.clone()).or_default() += 1,
                    Item::Scope(inner) => count(inner, out),
                    _ => {}
                }
            }
        }
        let mut out = BTreeMap::new();
        parser::parse(text)?.functions.iter().for_each(|f| count(f.body.as_deref().unwrap_or(&[]), &mut out));
        Ok(out)
    }

    /// The kernels in the order of the text.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// The global and constant variables in the order of the text.
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }
}

/// A module with addresses: its variables live in a memory, on one device.
#[derive(Debug, Clone)]
pub struct Instance {
    pub(crate) module: Arc<Module>,
    pub(crate) device: u32,
    pub(crate) addresses: Vec<u64>,
}

impl Instance {
    /// Allocates and initialises the module's variables on a device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn load(module: Arc<Module>, memory: &mut Memory, device: u32) -> Result<Instance, Error> {
        let mut addresses = Vec::new();
        for global in &module.globals {
            addresses.push(memory.allocate(device, global.bytes)?);
        }
        // Of equal names the first.
        let named: HashMap<&str, u64> = module
            .globals
            .iter()
            .zip(&addresses)
            .rev()
            .map(|(g, &address)| (g.name.as_str(), address))
            .collect();
        for (at, (global, initial)) in module.globals.iter().zip(&module.initial).enumerate() {
            // What has no initial value starts as zero.
            memory.fill(addresses[at], global.bytes, &[0])?;
            for (i, value) in initial.values.iter().enumerate() {
                let bits = match value {
                    Initial::Bits(n) => *n,
                    Initial::Address(name, offset) => {
                        named.get(name.as_str()).copied().unwrap_or(0).wrapping_add_signed(*offset)
                    }
                };
                let to = addresses[at] + i as u64 * u64::from(initial.width);
                memory.write(to, &bits.to_le_bytes()[..initial.width as usize])?;
            }
            if global.constant {
                memory.set_constant(addresses[at]);
            }
        }
        Ok(Instance { module, device, addresses })
    }

    /// Frees the module's variables.
    ///
    /// # Errors
    /// [`Error::Address`] when they are gone already.
    pub fn unload(self, memory: &mut Memory) -> Result<(), Error> {
        self.addresses.iter().try_for_each(|&a| memory.free(a))
    }

    /// The module.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// The device the variables live on.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Address and size in bytes of a variable.
    pub fn symbol(&self, name: &str) -> Option<(u64, u64)> {
        let at = self.module.globals.iter().position(|g| g.name == name)?;
        Some((self.addresses[at], self.module.globals[at].bytes))
    }
}
