//! A parsed module, and its instance in a memory.
//!
//! [`Module::parse`] reads the text once and lowers every kernel to the machine's own instructions, so that an unknown opcode is
//! an error here, with its line, and never a surprise in the middle of a launch. A [`Module`] has no memory; [`Instance::load`]
//! gives its `.global` and `.const` variables addresses in a [`Memory`].

use std::sync::Arc;

use crate::{Error, Memory};

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
    /// Local memory per thread, in bytes.
    pub local_bytes: u32,
    /// 32-bit registers per thread as the text declares them live at most (an estimate; ptxas knows better).
    pub registers: u32,
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
    pub(crate) globals: Vec<Global>,
}

impl Module {
    /// Parses and lowers a PTX text.
    ///
    /// # Errors
    /// [`Error::Syntax`] or [`Error::Unsupported`] with the line.
    pub fn parse(text: &str) -> Result<Module, Error> {
        let _ = text;
        Err(Error::Syntax { line: 1, what: "no parser yet".into() })
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
