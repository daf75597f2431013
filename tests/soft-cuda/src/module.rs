//! Modules and libraries: from an image to functions and variables.
//!
//! An image is PTX text, a fat binary that holds some ([`crate::fatbin`]), or the container that this
//! driver's own linker makes ([`crate::link`]). Machine code
//! of a real device is refused (`NO_BINARY_FOR_GPU`): nothing here can execute it. A text that does
//! not parse, or uses what the machine does not know, is `INVALID_PTX`, with the line in the log buffer of
//! the caller, as a real driver's compiler does it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Once};

use ptx_vm::{Instance, Kernel, Module};

use crate::capture;
use crate::code::{Code, Result};
use crate::device::{PTX, SHARED_DEFAULT, capability, shared_opt_in};
use crate::state::{Driver, Held, Id};
use crate::{device, queue};
use crate::{fatbin, link, occupancy};

/// A loaded module.
#[derive(Debug)]
pub struct LoadedModule {
    /// Its context.
    pub context: Id,
    /// One machine module per linked text.
    pub instances: Vec<Arc<Instance>>,
    /// Functions by name.
    pub functions: BTreeMap<String, Id>,
    /// The library it was made for.
    pub library: Option<Id>,
}

/// A kernel in a context.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its module.
    pub module: Id,
    /// Its context.
    pub context: Id,
    /// The machine module with its variables.
    pub instance: Arc<Instance>,
    /// What the machine knows of the kernel.
    pub kernel: Arc<Kernel>,
    /// Its name for C.
    pub name: Arc<CString>,
    /// Dynamic shared memory it may be launched with, in bytes.
    pub max_dynamic: u32,
    /// Preferred carveout in percent, -1 for none.
    pub carveout: i32,
    /// Clusters of more than 8 blocks are allowed.
    pub large_clusters: bool,
    /// `cuFuncSetAttribute` gave it a cluster size.
    pub cluster: [u32; 3],
    /// Cluster scheduling policy.
    pub policy: i32,
    /// Its code is on the device: since `cuFuncLoad`, or since its first launch (modules are loaded lazily).
    pub loaded: bool,
}

/// A library: an image that is loaded into each context that uses it.
#[derive(Debug)]
pub struct Library {
    /// The parsed texts.
    pub modules: Vec<Arc<Module>>,
    /// Modules made of it, by context.
    pub loaded: BTreeMap<Id, Id>,
    /// Kernel handles by name.
    pub kernels: BTreeMap<String, Id>,
}

/// An image that was read from memory or a file.
#[derive(Debug)]
pub enum Image {
    /// Text.
    Ptx(String),
    /// This driver's linker made it.
    Linked(Vec<String>),
    /// This driver's linker made it once; since then it was truncated or changed.
    Damaged,
    /// Machine code.
    Machine,
}

impl Image {
    /// A text with the bound of registers that a compiler option gives; what is compiled has its own.
    #[must_use]
    pub fn limit_registers(self, most: Option<u32>) -> Image {
        match (self, most) {
            // What is wrong with a text is said when it is parsed.
            (Image::Ptx(text), Some(most)) => {
                Image::Ptx(ptx_vm::link::limit_registers(&text, most).unwrap_or(text))
            }
            (image, _) => image,
        }
    }
}

/// Parses an image; `log` receives what a compiler would have said.
pub fn parse(image: &Image, log: &mut String) -> Result<Vec<Arc<Module>>> {
    match image {
        Image::Machine => {
            log.push_str("machine code cannot be executed by the software driver: load PTX\n");
            Err(Code::NO_BINARY_FOR_GPU)
        }
        Image::Damaged => {
            log.push_str("a container of the software driver's linker, truncated or changed\n");
            Err(Code::INVALID_IMAGE)
        }
        Image::Ptx(text) => Ok(vec![parse_text(text, log)?]),
        Image::Linked(texts) => texts.iter().map(|t| parse_text(t, log)).collect(),
    }
}

fn parse_text(text: &str, log: &mut String) -> Result<Arc<Module>> {
    let Some(version) = version(text) else {
        log.push_str("no `.version` directive: this is not PTX\n");
        return Err(Code::INVALID_IMAGE);
    };
    if version > PTX {
        // What is new in it is refused by name where it is used; most texts use nothing of it.
        let [major, minor] = version;
        let warning =
            format!("PTX {major}.{minor} is newer than what this driver knows ({}.{})", PTX[0], PTX[1]);
        static SAID: Once = Once::new();
        SAID.call_once(|| eprintln!("[{}] {warning}", device::NAME));
        log.push_str(&format!("{warning}\n"));
    }
    let module = Module::parse(text).map_err(|e| {
        log.push_str(&format!("{e}\n"));
        Code::INVALID_PTX
    })?;
    let digits: String =
        module.target.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    match digits.parse::<u32>() {
        Ok(target) if target <= capability() => Ok(Arc::new(module)),
        _ => {
            let own = capability();
            log.push_str(&format!("target `{}` is not for this device (sm_{own})\n", module.target));
            Err(Code::INVALID_PTX)
        }
    }
}

/// The `.version` of a text, also of one that this machine cannot parse.
fn version(text: &str) -> Option<[u32; 2]> {
    let line = text.lines().map(str::trim_start).find_map(|l| l.strip_prefix(".version"))?;
    let number = line.split_whitespace().next()?;
    let (major, minor) = number.split_once('.')?;
    Some([major.parse().ok()?, minor.parse().ok()?])
}

/// Loads an image into the current context.
pub fn load(d: &mut Driver, image: &Image, log: &mut String) -> Result<Id> {
    capture::refuse_unsafe(d)?;
    let context = d.here()?;
    let modules = parse(image, log)?;
    instantiate(d, context, &modules, None)
}

fn instantiate(d: &mut Driver, context: Id, modules: &[Arc<Module>], library: Option<Id>) -> Result<Id> {
    let device = d.healthy(context)?.device;
    let mut instances = Vec::new();
    for module in modules {
        let instance = Instance::load(module.clone(), &mut d.memory, device).map_err(|_| Code::OUT_OF_MEMORY);
        match instance {
            Ok(instance) => instances.push(Arc::new(instance)),
            Err(code) => {
                unload_instances(d, instances);
                return Err(code);
            }
        }
    }
    let id = d.id();
    let mut functions = BTreeMap::new();
    for instance in &instances {
        for kernel in instance.module().kernels() {
            let function = d.id();
            functions.insert(kernel.name.clone(), function);
            let made = Function::new(id, context, instance.clone(), kernel.clone());
            d.functions.insert(function, made);
        }
    }
    d.modules.insert(id, LoadedModule { context, instances, functions, library });
    Ok(id)
}

impl Function {
    fn new(module: Id, context: Id, instance: Arc<Instance>, kernel: Kernel) -> Self {
        let max_dynamic = SHARED_DEFAULT.saturating_sub(kernel.static_shared);
        let name = CString::new(kernel.name.clone()).unwrap_or_default();
        Function {
            module,
            context,
            instance,
            kernel: Arc::new(kernel),
            name: Arc::new(name),
            max_dynamic,
            carveout: -1,
            large_clusters: false,
            cluster: [0; 3],
            policy: 0,
            loaded: false,
        }
    }
}

fn unload_instances(d: &mut Driver, instances: Vec<Arc<Instance>>) {
    for instance in instances {
        // A graph may hold the module's code; its variables go all the same, and whoever launches it finds
        // out.
        let instance = Arc::try_unwrap(instance).unwrap_or_else(|shared| Instance::clone(&shared));
        let _ = instance.unload(&mut d.memory);
    }
}

/// Unloads a module, after its context's work.
pub fn unload(d: &mut Held, id: Id) -> Result {
    capture::refuse_unsafe(d)?;
    let module = d.modules.get(&id).ok_or(Code::INVALID_HANDLE)?;
    if module.library.is_some() {
        return Err(Code::NOT_PERMITTED);
    }
    queue::finish_context(d, module.context)?;
    remove(d, id);
    Ok(())
}

fn remove(d: &mut Driver, id: Id) {
    let Some(module) = d.modules.remove(&id) else { return };
    for function in module.functions.values() {
        d.functions.remove(function);
    }
    unload_instances(d, module.instances);
}

/// Unloads the modules of a context that goes.
pub fn drop_context(d: &mut Driver, context: Id) {
    let gone: Vec<Id> = d.modules.iter().filter(|(_, m)| m.context == context).map(|(&id, _)| id).collect();
    for id in gone {
        remove(d, id);
    }
    for library in d.libraries.values_mut() {
        library.loaded.remove(&context);
    }
}

/// A function of a module by name.
pub fn function(d: &Driver, module: Id, name: &str) -> Result<Id> {
    let module = d.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
    d.healthy(module.context)?;
    module.functions.get(name).copied().ok_or(Code::NOT_FOUND)
}

/// Address and size in bytes of a module's variable.
pub fn global(d: &Driver, module: Id, name: &str) -> Result<(u64, u64)> {
    let module = d.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
    d.healthy(module.context)?;
    module.instances.iter().find_map(|i| i.symbol(name)).ok_or(Code::NOT_FOUND)
}

/// The function of a handle; a kernel of a library counts as its function in the current context.
pub fn get(d: &mut Driver, id: Id) -> Result<Id> {
    if d.functions.contains_key(&id) {
        return Ok(id);
    }
    if d.kernels.contains_key(&id) { kernel_function(d, id) } else { Err(Code::INVALID_HANDLE) }
}

/// Loads an image as a library: parsed now, given memory when a context uses it.
pub fn load_library(d: &mut Driver, image: &Image, log: &mut String) -> Result<Id> {
    let modules = parse(image, log)?;
    let id = d.id();
    let names: Vec<String> = modules.iter().flat_map(|m| m.kernels()).map(|k| k.name.clone()).collect();
    let mut kernels = BTreeMap::new();
    for name in names {
        let kernel = d.id();
        d.kernels.insert(kernel, (id, name.clone()));
        kernels.insert(name, kernel);
    }
    d.libraries.insert(id, Library { modules, loaded: BTreeMap::new(), kernels });
    Ok(id)
}

/// The library's module in the current context.
pub fn library_module(d: &mut Driver, id: Id) -> Result<Id> {
    let context = d.here()?;
    let library = d.libraries.get(&id).ok_or(Code::INVALID_HANDLE)?;
    if let Some(&module) = library.loaded.get(&context) {
        return Ok(module);
    }
    let modules = library.modules.clone();
    let module = instantiate(d, context, &modules, Some(id))?;
    if let Some(library) = d.libraries.get_mut(&id) {
        library.loaded.insert(context, module);
    }
    Ok(module)
}

/// A library kernel's function in the current context.
pub fn kernel_function(d: &mut Driver, kernel: Id) -> Result<Id> {
    let (library, name) = d.kernels.get(&kernel).cloned().ok_or(Code::INVALID_HANDLE)?;
    let module = library_module(d, library)?;
    function(d, module, &name)
}

/// Unloads a library and what contexts made of it, after their work.
pub fn unload_library(d: &mut Held, id: Id) -> Result {
    capture::refuse_unsafe(d)?;
    let library = d.libraries.get(&id).ok_or(Code::INVALID_HANDLE)?;
    let loaded: Vec<(Id, Id)> = library.loaded.iter().map(|(&c, &m)| (c, m)).collect();
    for (context, module) in loaded {
        queue::finish_context(d, context)?;
        remove(d, module);
    }
    if let Some(library) = d.libraries.remove(&id) {
        for kernel in library.kernels.values() {
            d.kernels.remove(kernel);
        }
    }
    Ok(())
}

/// A function attribute by its `CUfunction_attribute` number.
pub fn attribute(function: &Function, number: u32) -> Result<i32> {
    let kernel = &function.kernel;
    let cluster = kernel.required_cluster.unwrap_or(function.cluster);
    let version = function.instance.module().version;
    Ok(match number {
        0 => occupancy::max_threads(kernel) as i32,
        1 => kernel.static_shared as i32,
        2 => {
            let constants = function.instance.module().globals().iter().filter(|g| g.constant);
            constants.map(|g| g.bytes).sum::<u64>() as i32
        }
        3 => kernel.local_bytes as i32,
        4 => occupancy::registers(kernel) as i32,
        5 => (version[0] * 10 + version[1]) as i32,
        6 => capability() as i32,
        7 => 0,
        8 => function.max_dynamic as i32,
        9 => function.carveout,
        10 => i32::from(kernel.required_cluster.is_some()),
        11..=13 => cluster[number as usize - 11] as i32,
        14 => i32::from(function.large_clusters),
        15 => function.policy,
        16 => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Sets a function attribute.
pub fn set_attribute(function: &mut Function, number: u32, value: i32) -> Result {
    let natural = || u32::try_from(value).map_err(|_| Code::INVALID_VALUE);
    match number {
        8 => {
            let value = natural()?;
            if value > shared_opt_in().saturating_sub(function.kernel.static_shared) {
                return Err(Code::INVALID_VALUE);
            }
            function.max_dynamic = value;
        }
        9 if (-1..=100).contains(&value) => function.carveout = value,
        // What the text requires cannot be overridden.
        11..=13 if function.kernel.required_cluster.is_none() => {
            function.cluster[number as usize - 11] = natural()?
        }
        14 => function.large_clusters = value != 0,
        15 if (0..=2).contains(&value) => function.policy = value,
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

/// Reads an image that lies in memory: the first bytes say what it is.
pub fn classify(bytes: &[u8]) -> Image {
    const ELF: &[u8] = b"\x7fELF";
    if fatbin::begins(bytes) {
        return fatbin::text(bytes, capability()).map_or(Image::Machine, Image::Ptx);
    }
    if bytes.starts_with(ELF) || fatbin::refers(bytes) {
        return Image::Machine;
    }
    match link::open(bytes) {
        Some(texts) => Image::Linked(texts),
        None if link::is_one(bytes) => Image::Damaged,
        None => Image::Ptx(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()),
    }
}
