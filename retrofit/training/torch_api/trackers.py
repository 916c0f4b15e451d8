"""Experiment trackers: how each is started, and what its functions do."""

from __future__ import annotations

# What starts a run, by full name, with the tool. Through rd.output.start_tracker the other ranks get the tool's own
# disabled run, so that everything that is called on the run, or on the module afterwards, may stay as it is.
STARTS = {
    "wandb.init": "wandb", "swanlab.init": "swanlab", "neptune.init_run": "neptune", "neptune.init": "neptune",
    "neptune.new.init": "neptune", "neptune.new.init_run": "neptune", "comet_ml.Experiment": "comet_ml",
    "comet_ml.OfflineExperiment": "comet_ml", "comet_ml.ExistingExperiment": "comet_ml", "comet_ml.start": "comet_ml",
    "clearml.Task.init": "clearml", "trains.Task.init": "clearml", "aim.Run": "aim", "dvclive.Live": "dvclive",
}  # fmt: skip
# Objects that must exist once: the other ranks get one that takes every call and does nothing.
EVENT_WRITERS = frozenset({
    "tensorboardX.SummaryWriter", "torch.utils.tensorboard.SummaryWriter", "tensorboardX.writer.SummaryWriter",
    "torch.utils.tensorboard.writer.SummaryWriter", "tensorboard_logger.Logger", "visdom.Visdom",
    "tensorboard.SummaryWriter", "importlib.import_module.SummaryWriter", "torch.utils.tensorboard.FileWriter",
    "tensorflow.summary.FileWriter", "tensorflow.summary.create_file_writer", "wandb.Artifact", "mlflow.start_run",
    "mlflow.active_run", "mlflow.last_active_run", "mlflow.MlflowClient", "mlflow.tracking.MlflowClient",
    "trackio.init", "neptune.init_project", "neptune.init_model", "neptune.init_model_version",
})  # fmt: skip
TRACKERS = EVENT_WRITERS | frozenset(STARTS)
# Functions that need no run that was started, or none that can be disabled: rank 0 alone calls them.
WITHOUT_RUN = frozenset({
    "wandb.login", "swanlab.login", "comet_ml.init", "comet_ml.login", "mlflow.login",
    "tensorboard_logger.configure", "tensorboard_logger.log_value", "tensorboard_logger.log_histogram",
    "tensorboard_logger.log_images", "matplotlib.pyplot.show", "torch_geometric.logging.init_wandb",
    "torch_geometric.logging.log",
})  # fmt: skip
# Functions of mlflow that send something, and those of a module that has one run: nothing on a disabled one.
MLFLOW_SENDS = frozenset({
    "log_metric", "log_metrics", "log_param", "log_params", "log_artifact", "log_artifacts", "log_figure", "log_image",
    "log_dict", "log_text", "log_table", "log_input", "log_inputs", "log_model", "save_model", "log_state_dict",
    "set_tag", "set_tags", "delete_tag", "set_experiment", "set_experiment_tags", "create_experiment",
    "set_tracking_uri", "end_run", "autolog", "register_model", "enable_system_metrics_logging",
})  # fmt: skip
MODULES_WITH_RUN = frozenset({"wandb", "swanlab", "trackio"})
RUN_SENDS = frozenset({
    "log", "finish", "save", "watch", "unwatch", "alert", "define_metric", "log_artifact", "log_model", "log_code",
    "mark_preempting", "update", "link_artifact", "link_model",
})  # fmt: skip

# Methods of whatever object by what becomes of their arguments: drawn, or sent to a log.
PLOT_METHODS = frozenset({
    "plot", "scatter", "line", "lines", "bar", "hist", "imshow", "image", "images", "semilogy", "errorbar", "heatmap",
    "fill_between",
})  # fmt: skip
LOG_METHODS = frozenset({
    "log", "log_metric", "log_metrics", "log_scalar", "log_value", "log_dict", "track", "report", "report_scalar",
    "scalar_summary", "image_summary", "histo_summary", "text", "log_image", "log_images", "log_histogram",
    "update_plot",
})  # fmt: skip
