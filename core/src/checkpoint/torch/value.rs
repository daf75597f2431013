//! What a pickle holds once it has been read: values without behaviour.
//!
//! Values are small and copied; tuples, lists, dictionaries, storages and tensors lie in one arena and are
//! named by their number, so that shared and circular references need no counting. Text stays where it is in
//! the pickle.

use crate::mem::Stored;

/// One value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    /// `None`, and what else carries nothing that a checkpoint needs.
    Nothing,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Bytes `start..start + len` of the pickle, valid UTF-8.
    Text(u32, u32),
    /// Bytes `start..start + len` of the pickle.
    Bytes(u32, u32),
    /// The empty tuple, which is the most frequent one.
    Unit,
    Global(Global),
    /// A number in the arena.
    Node(u32),
}

/// What a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    /// `_rebuild_tensor` and its later versions.
    Tensor(Rebuild),
    /// `_rebuild_parameter`, with or without state: the first argument is the tensor.
    Parameter,
    /// `_rebuild_from_type_v2`: a constructor, a class, arguments, state.
    Typed,
    /// A storage class; none for bytes whose element type the tensor says.
    Storage(Option<Stored>),
    /// An element type.
    Dtype(Stored),
    /// `OrderedDict`.
    Map,
    /// `torch.Size`, `list`, `tuple`, `set`: the first argument is the content.
    Sequence,
    /// `argparse.Namespace`: its state is a dictionary.
    Namespace,
    /// Known, harmless, and of no use to a model (random states, devices).
    Inert,
}

/// Which arguments follow storage, offset, shape and strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rebuild {
    /// Nothing of interest.
    Plain,
    /// The element type is the seventh argument.
    WithDtype,
}

/// What lies in the arena.
#[derive(Debug)]
pub(super) enum Node {
    Tuple(Box<[Value]>),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    /// A namespace and the node that holds its dictionary.
    Object(Option<u32>),
    Storage(Box<StorageRef>),
    Tensor(Box<Tensor>),
}

/// A storage by its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StorageRef {
    pub key: String,
    /// None: untyped bytes.
    pub stored: Option<Stored>,
    /// Elements (bytes when untyped).
    pub count: u64,
}

/// A tensor: a strided window on a storage, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub key: String,
    pub stored: Stored,
    /// Elements of the storage.
    pub count: u64,
    pub offset: u64,
    pub shape: Vec<usize>,
    pub strides: Vec<u64>,
}

/// Everything that a pickle may name; anything else is refused.
pub(super) fn global(module: &str, name: &str) -> Option<Global> {
    use Global::*;
    Some(match (module, name) {
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Tensor(Rebuild::Plain),
        ("torch._utils", "_rebuild_tensor_v3") => Tensor(Rebuild::WithDtype),
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Parameter,
        ("torch._tensor", "_rebuild_from_type_v2") => Typed,
        ("torch.storage", "UntypedStorage") => Storage(None),
        ("torch" | "torch.cuda", _) if name.ends_with("Storage") => {
            Storage(Some(storage(name.strip_suffix("Storage")?)?))
        }
        ("torch", "Size") | ("builtins" | "__builtin__", "set" | "frozenset" | "list" | "tuple") => Sequence,
        ("torch", _) if dtype(name).is_some() => Dtype(dtype(name)?),
        ("collections", "OrderedDict") | ("builtins" | "__builtin__", "dict") => Map,
        ("argparse", "Namespace") => Namespace,
        ("torch", "device" | "Tensor")
        | ("torch.nn.parameter", "Parameter")
        | ("_codecs", "encode")
        | ("builtins" | "__builtin__", "bytes" | "bytearray" | "complex")
        | ("numpy", "ndarray" | "dtype")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct" | "scalar")
        | ("pathlib", "Path" | "PosixPath" | "PurePosixPath") => Inert,
        _ => return None,
    })
}

fn storage(kind: &str) -> Option<Stored> {
    Some(match kind {
        "Double" => Stored::F64,
        "Float" => Stored::F32,
        "Half" => Stored::F16,
        "BFloat16" => Stored::Bf16,
        "Long" => Stored::I64,
        "Int" => Stored::I32,
        "Short" => Stored::I16,
        "Char" => Stored::I8,
        "Byte" => Stored::U8,
        "Bool" => Stored::Bool,
        _ => return None,
    })
}

fn dtype(name: &str) -> Option<Stored> {
    Some(match name {
        "float64" | "double" => Stored::F64,
        "float32" | "float" => Stored::F32,
        "float16" | "half" => Stored::F16,
        "bfloat16" => Stored::Bf16,
        "int64" | "long" => Stored::I64,
        "int32" | "int" => Stored::I32,
        "int16" | "short" => Stored::I16,
        "int8" => Stored::I8,
        "uint8" => Stored::U8,
        "bool" => Stored::Bool,
        _ => return None,
    })
}
