"""Every option with its type, default and range; the only room that knows Hydra.

checks (rules for values), groups (options of training), steps (options of each step), compose (YAML and overrides).
"""

from scperformer.config.checks import (
    ABOVE_ZERO_OR_NULL,
    ONE_OR_MORE,
    ZERO_OR_MORE,
    Options,
    Rule,
    checked,
    one_of,
    option,
    require,
)
from scperformer.config.compose import (
    command_line,
    group_names,
    hand_to_hydra,
    make_config,
    quoted,
    sweep_folder,
    sweep_job,
    to_config,
    yaml_text,
)
from scperformer.config.groups import (
    AUTO,
    DataConfig,
    HeadConfig,
    MaskingConfig,
    ModelConfig,
    OptimConfig,
    TokensConfig,
    TrainerConfig,
)
from scperformer.config.steps import (
    AnalyzeConfig,
    CheckConfig,
    EvaluateConfig,
    ModelsConfig,
    NetworkConfig,
    PredictConfig,
    PreprocessConfig,
    PretrainConfig,
    ReportConfig,
    TrainConfig,
)
