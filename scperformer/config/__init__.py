"""Every option with its type, default and range; the only room that knows Hydra.

groups (rules for values, options of training), steps (options of each step), options (as a user reads them), compose
(YAML and overrides).
"""

from scperformer.config.compose import (
    command_line,
    hand_to_hydra,
    make_config,
    overrides_of,
    quoted,
    sweep_job,
    to_config,
    yaml_text,
)
from scperformer.config.groups import (
    ABOVE_ZERO,
    AUTO,
    ONE_OR_MORE,
    ZERO_OR_MORE,
    ConditionsConfig,
    DataConfig,
    HeadConfig,
    MaskingConfig,
    ModelConfig,
    OptimConfig,
    Options,
    Rule,
    TokensConfig,
    TrainerConfig,
    checked,
    choice,
    option,
    require,
)
from scperformer.config.options import groups_of, meant, option_texts
from scperformer.config.steps import (
    AdaptConfig,
    AnalyzeConfig,
    CheckConfig,
    EvaluateConfig,
    ExplainConfig,
    ModelsConfig,
    NetworkConfig,
    PredictConfig,
    PreprocessConfig,
    PretrainConfig,
    ReportConfig,
    TrainConfig,
)
