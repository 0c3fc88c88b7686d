"""Every option with its type, default and range; the only room that knows Hydra.

Files in reading order: groups (rules for values, and the options of training by group), steps (the options of each
step), options (the same as a user reads them), mechanisms (attention mechanisms of others), presets (YAML files with
options, by group), words (options as words of a command), compose (presets and options become the dataclass of a step),
file (options from a file of the user), sweeps (runs that Hydra launches).
"""

from scperformer.config.compose import config_from, make_config, tree_of_words, yaml_text
from scperformer.config.file import read_options, words_from_file, workflow_options
from scperformer.config.groups import (
    ABOVE_ZERO,
    AUTO,
    ONE_OR_MORE,
    ZERO_OR_MORE,
    ConditionsConfig,
    DataConfig,
    HeadConfig,
    LoggerConfig,
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
from scperformer.config.mechanisms import CONTRACT, register_mechanism, registered_mechanism, registered_names
from scperformer.config.options import closest_option, groups_of, option_texts, text_options
from scperformer.config.steps import (
    RESULT_VERSION,
    WORKFLOW_KEYS,
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
    WorkflowConfig,
)
from scperformer.config.sweeps import OF_HYDRA, command_line, hand_to_hydra, sweep_job
from scperformer.config.words import option_word, option_words, quoted
