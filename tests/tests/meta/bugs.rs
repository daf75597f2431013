//! The planted bugs: where each one sits and which comparison of the suite must see it.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    NormEpsilonTimes100,
    NormDropsBias,
    NormBitsDependOnPitch,
    HeadNormForgetsPlusOne,
    LinearDropsBias,
    LinearRowsShifted,
    LinearLastColumnUnwritten,
    LinearOneNan,
    LinearWritesBeyondRow,
    LinearLastBit,
    LinearBitsDependOnThreads,
    AddsTwice,
    ActivateSkipsLastRow,
    GateWrongActivation,
    GateBitsChangeFromCallToCall,
    ScaleForgetsCap,
    RouteNextExpert,
    RouteForgetsScale,
    ExpertLinearDropsBias,
    ExpertLinearLastBit,
    CombineOverwrites,
    ConvertTruncates,
    RopeNextPosition,
    RopeSkipsLastToken,
    RopeOtherStyle,
    AppendSwapsKeysAndValues,
    AppendNextSlot,
    AppendWritesSkipped,
    CopyPagesBackwards,
    AttendScaleOnePercent,
    AttendIgnoresWindow,
    AttendNotCausal,
    AttendIgnoresSlopes,
    AttendIgnoresCap,
    AttendBitsDependOnBatch,
    DenseWindowOneWider,
    GatherNextRow,
    PatchDropsLastPair,
    MarkSeenDropsLastId,
    MarkSeenKeepsOldBits,
    ArgmaxNextColumn,
    ArgmaxLastOfEquals,
    SampleNextPosition,
    SampleForgetsToMark,
    EmbedNextId,
    EmbedIsNotRecorded,
    EmbedAddOverwrites,
    AddNormKeepsOldResidual,
    AddNormLastBit,
    LinearActTwice,
    GatedLinearWrongActivation,
    LinearAddDropsBias,
    QkvDropsKeyNorm,
    QkvDropsRotation,
    ReduceAddNormDropsWeight,
}

/// Comparisons as `laws` names them; a stray write fails the run itself.
pub const RUN: &str = "run";
pub const ORACLE: &str = "oracle";
pub const STRICT: &str = "strict order";
pub const COMPOSED: &str = "fused against composed";
pub const TWICE: &str = "run twice";
pub const ALONE: &str = "alone against in a batch";
pub const RELAID: &str = "laid out otherwise";
pub const REPLAY: &str = "recorded and replayed";
pub const TWIN: &str = "2 threads against 1";

/// Every comparison.
pub const COMPARISONS: [&str; 9] = [RUN, ORACLE, STRICT, COMPOSED, TWICE, ALONE, RELAID, REPLAY, TWIN];

/// Every bug, the op whose spec must catch it, and the comparison that must fail.
pub const BUGS: [(Bug, &str, &str); 55] = {
    use Bug::*;
    [
        (NormEpsilonTimes100, "norm", ORACLE),
        (NormDropsBias, "norm", ORACLE),
        (NormBitsDependOnPitch, "norm", RELAID),
        (HeadNormForgetsPlusOne, "head_norm", ORACLE),
        (LinearDropsBias, "linear", ORACLE),
        (LinearRowsShifted, "linear", ORACLE),
        (LinearLastColumnUnwritten, "linear", ORACLE),
        (LinearOneNan, "linear", ORACLE),
        (LinearWritesBeyondRow, "linear", RUN),
        (LinearLastBit, "linear", STRICT),
        (LinearBitsDependOnThreads, "linear", TWIN),
        (LinearDropsBias, "linear_w8a8", ORACLE),
        (LinearLastBit, "linear_w8a8", STRICT),
        (AddsTwice, "add", ORACLE),
        (ActivateSkipsLastRow, "activate", ORACLE),
        (GateWrongActivation, "gate", ORACLE),
        (GateBitsChangeFromCallToCall, "gate", TWICE),
        (ScaleForgetsCap, "scale", ORACLE),
        (RouteNextExpert, "route", ORACLE),
        (RouteForgetsScale, "route", ORACLE),
        (ExpertLinearDropsBias, "expert_linear", ORACLE),
        (ExpertLinearLastBit, "expert_linear", STRICT),
        (CombineOverwrites, "combine", ORACLE),
        (ConvertTruncates, "convert", ORACLE),
        (RopeNextPosition, "rope", ORACLE),
        (RopeSkipsLastToken, "rope", ORACLE),
        (RopeOtherStyle, "rope", ORACLE),
        (AppendSwapsKeysAndValues, "kv_append", ORACLE),
        (AppendNextSlot, "kv_append", ORACLE),
        (AppendWritesSkipped, "kv_append", ORACLE),
        (CopyPagesBackwards, "kv_copy_pages", ORACLE),
        (AttendScaleOnePercent, "attend", ORACLE),
        (AttendIgnoresWindow, "attend", ORACLE),
        (AttendNotCausal, "attend", ORACLE),
        (AttendIgnoresSlopes, "attend", ORACLE),
        (AttendIgnoresCap, "attend", ORACLE),
        (AttendBitsDependOnBatch, "attend", ALONE),
        (DenseWindowOneWider, "attend_dense", ORACLE),
        (GatherNextRow, "gather_rows", ORACLE),
        (PatchDropsLastPair, "patch", ORACLE),
        (MarkSeenDropsLastId, "mark_seen", ORACLE),
        (MarkSeenKeepsOldBits, "mark_seen", ORACLE),
        (ArgmaxNextColumn, "argmax", ORACLE),
        (ArgmaxLastOfEquals, "argmax", ORACLE),
        (SampleNextPosition, "sample", ORACLE),
        (SampleForgetsToMark, "sample", ORACLE),
        (EmbedNextId, "embed", ORACLE),
        (EmbedIsNotRecorded, "embed", REPLAY),
        (EmbedAddOverwrites, "embed_add", ORACLE),
        (AddNormKeepsOldResidual, "add_norm", ORACLE),
        (AddNormLastBit, "add_norm", COMPOSED),
        (LinearActTwice, "linear_act", ORACLE),
        (GatedLinearWrongActivation, "gated_linear", ORACLE),
        (LinearAddDropsBias, "linear_add", ORACLE),
        (QkvDropsKeyNorm, "qkv_rope_append", ORACLE),
        (QkvDropsRotation, "qkv_rope_append", ORACLE),
        (ReduceAddNormDropsWeight, "reduce_add_norm", ORACLE),
    ]
};
