"""Legacy projects that differ in shape: where the loop, the loaders, the model and the options live."""

from __future__ import annotations

from convert.case import Case

SHAPE_CASES = [
    Case(
        "toplevel_constants",
        [],
        checkpoint="snapshots/beats_it0008_*.pth",
        note="all at module level, constants only; saves every 4 iterations with the running loss in the file name",
    ),
    Case(
        "toplevel_argparse",
        ["--epochs", "2"],
        checkpoint="experiments/exp0/last.pt",
        resume=["--resume", "{checkpoint}", "--epochs", "4"],
        note="all at module level, arguments parsed at import, no main guard",
    ),
    Case(
        "globals_train_test",
        ["--epochs", "2"],
        checkpoint="checkpoint/best.pth",
        resume=["--resume"],
        note="train(epoch) and test(epoch) read module globals; test() saves the best with `global best_acc`",
    ),
    Case(
        "main_function",
        ["--epochs", "2", "--save-model"],
        checkpoint="digits.pt",
        note="main() hands everything to train(args, model, device, ...) and test(...); StepLR per epoch",
    ),
    Case(
        "everything_under_name_main",
        ["--num-epochs", "2", "--num-workers", "0"],
        checkpoint="weights_x2/best.pth",
        note="all under the main guard, parameter groups by layer, best weights kept as a deep copy",
    ),
    Case(
        "trainer_class",
        ["--epochs", "2"],
        checkpoint="run/baseline/checkpoint.pth.tar",
        resume=["--resume", "{checkpoint}", "--epochs", "4"],
        note="class Trainer in the entry file; __init__ builds all, training(epoch), validation(epoch)",
    ),
    Case(
        "trainer_class_in_module",
        ["--num_epochs", "2"],
        checkpoint="models/epoch002_net.ckpt",
        resume=["--resume_epoch", "2", "--num_epochs", "4"],
        note="Solver(config).train() in solver.py; get_loader(mode=...) shuffles when mode == 'train'",
    ),
    Case(
        "loader_helper",
        ["-net", "plain_bn", "-gpu", "-epochs", "2"],
        checkpoint="checkpoints/plain_bn/plain_bn-2.pth",
        resume=["-weights", "{checkpoint}"],
        note="loaders and the model come from helper functions of utils.py",
    ),
    Case(
        "kwargs_dict",
        ["--epochs", "2", "--save-model"],
        checkpoint="twin.pt",
        note="DataLoader(dataset, **train_kwargs), the dict is filled with update()",
    ),
    Case(
        "loaders_from_dict_function",
        [],
        checkpoint="last.pth.tar",
        resume=["--restore_file", "last"],
        note="fetch_dataloader(types, params) returns a dict of loaders; settings from params.json",
    ),
    Case(
        "phase_dict",
        [],
        checkpoint="ants_beetles.pth",
        note="for phase in ['train', 'val'] over a dict of loaders with set_grad_enabled; frozen layers",
    ),
    Case(
        "while_true_iterations",
        ["--total_itrs", "12", "--val_interval", "6", "--print_interval", "3"],
        checkpoint="checkpoints/latest_roads.pth",
        resume=["--ckpt", "{checkpoint}", "--continue_training", "--total_itrs", "18"],
        note="while True over the loader until total_itrs, validation in the loop, save_ckpt is a closure",
    ),
    Case(
        "next_iter",
        ["--num_iters", "12", "--save_iters", "6"],
        checkpoint="exp/deblur_000012.pth",
        resume=["--resume", "{checkpoint}", "--num_iters", "18"],
        note="next(data_iter), begun anew on StopIteration",
    ),
    Case(
        "yaml_config",
        [],
        checkpoint="models/cells_small/model.pth",
        note="settings from config.yaml, optimizer by name, AverageMeter, a csv log written after each epoch",
    ),
    Case(
        "options_module",
        ["--epoch", "2"],
        checkpoint="depth_cpts/depth_2.pth",
        resume=["--load", "{checkpoint}"],
        note="options.py parses at import, every module does `from options import opt`",
    ),
    Case(
        "lib_trainer",
        ["--max_iters", "12"],
        checkpoint="out/sums/model.pt",
        note="Trainer of a package makes a RandomSampler with replacement; callbacks; the model returns its loss",
    ),
    Case(
        "config_registry",
        [],
        checkpoint="saved/*/*/checkpoint-epoch2.pth",
        resume=["-r", "{checkpoint}", "--epochs", "4"],
        note="getattr(module, config[...]['type']), BaseTrainer, a DataLoader subclass that splits, folder by time",
    ),
    Case(
        "tabs_and_crlf",
        ["--epochen", "2"],
        checkpoint="ergebnis/bestes_netz.pt",
        note="tabs, CRLF line ends, latin-1 with a coding cookie",
    ),
    Case(
        "parse_function",
        ["-e", "2"],
        checkpoint="checkpoints/net_epoch2.pth",
        resume=["-f", "{checkpoint}"],
        note="get_args(), train_net(net, device, epochs=...), net.n_classes read in the loop, plateau in mid-epoch",
    ),
    Case(
        "fire_like_function",
        [],
        checkpoint="out/epoch2.pt",
        resume=["--resume", "{checkpoint}"],
        note="train(lr=0.01, ...) called on the last line, one option read from sys.argv by hand",
    ),
]
