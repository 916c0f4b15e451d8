"""Bugs in what ranks say, write, read and wait for: metrics, collectives, checkpoints, logs, launching."""

from __future__ import annotations

from .bug import Bug
from .snippets import METRIC_CONTENT, METRIC_DDP, METRIC_IMPORT_OS, METRIC_SAVE_CALL, classifier_ddp

CLASSIFIER_REDUCE = "    correct, count = rd.sum_over_ranks(correct, count)\n"
LM_SETUP = "    rd.setup_distributed(args)\n"

OUTPUT_BUGS = [
    Bug(
        id="04",
        title="accuracy, best checkpoint and early stopping follow each rank's own share of the validation set",
        project="classifier",
        edits=[("train.py", CLASSIFIER_REDUCE, "")],
        cause=("RF401",),
        check="metrics",
        note="runs through; the accuracy shown, best.pt and `best` are those of rank 0's 17 samples",
    ),
    Bug(
        id="04b",
        title="early stopping decided by each rank for itself: one stops, the others wait for it",
        project="classifier",
        arguments=["--patience", "1", "--epochs", "8", "--seed", "3"],
        edits=[("train.py", CLASSIFIER_REDUCE, "")],
        cause=("RF401",),
        check="metrics",
        note="rank 0 ends after epoch 2, rank 1 goes on and waits for ever; at other seeds both stop alike",
    ),
    Bug(
        id="06",
        title="rank 0 evaluates alone through the live DDP model, whose forward broadcasts buffers",
        project="classifier",
        edits=[
            *classifier_ddp(""),
            ("train.py", "rd.share_batches(loader)", "loader"),
            ("train.py", CLASSIFIER_REDUCE, ""),
            (
                "train.py",
                "        accuracy = evaluate(model, val_loader, device)\n",
                "        accuracy = evaluate(model, val_loader, device) if rd.is_main_process() else 0.0\n",
            ),
        ],
        cause=("RF402",),
        check="collectives",
        note="hangs after the first epoch, without a word",
    ),
    Bug(
        id="06b",
        title="the sum over ranks is asked for by rank 0 alone, where it is printed",
        project="language_model",
        edits=[
            ("train.py", "        total += rd.reduce_loss(loss).item()\n", "        total += loss.item()\n"),
            (
                "train.py",
                "        perplexity = get_perplexity(model, val_loader, device)\n",
                """\
        perplexity = get_perplexity(model, val_loader, device)
        if rd.is_main_process():
            loss = rd.reduce_loss(loss)
""",
            ),
        ],
        cause=("RF402",),
        check="collectives",
        note="hangs after the first epoch, without a word",
    ),
    Bug(
        id="07",
        title="every rank writes the same checkpoint file",
        project="metric_learning",
        edits=[
            METRIC_IMPORT_OS,
            (
                "train.py",
                METRIC_SAVE_CALL,
                METRIC_CONTENT % "rd.unwrap_model(model).state_dict()"
                + "        os.makedirs(args.out, exist_ok=True)\n        torch.save(content, path)\n",
            ),
        ],
        cause=("RF501",),
        check="single_writer",
        note="runs through; the checkpoint is what the last rank wrote, or torn if both write at once",
    ),
    Bug(
        id="07b",
        title="every rank appends to the same table of results",
        project="metric_learning",
        edits=[
            (
                "train.py",
                METRIC_SAVE_CALL,
                METRIC_SAVE_CALL
                + """\
        with open(f"{args.out}/history.csv", "a") as file:
            file.write(f"{epoch + 1},{loss:.4f},{recall:.4f}\\n")
""",
            ),
        ],
        cause=("RF501",),
        check="single_writer",
        note="runs through; every line of history.csv is there twice",
    ),
    Bug(
        id="08",
        title="the checkpoint's names begin with 'module.': the single-GPU script cannot load it",
        project="metric_learning",
        edits=[
            *METRIC_DDP,
            METRIC_IMPORT_OS,
            (
                "train.py",
                METRIC_SAVE_CALL,
                METRIC_CONTENT % "model.state_dict()"
                + """\
        if rd.is_main_process():
            os.makedirs(args.out, exist_ok=True)
            torch.save(content, path)
""",
            ),
        ],
        cause=("RF502",),
        check="checkpoint",
        note="runs through and resumes; train_single.py --resume fails: unexpected key module.layers.0.weight",
    ),
    Bug(
        id="09",
        title="torch.load without map_location: every rank loads onto the GPU that rank 0 saved from",
        project="metric_learning",
        edits=[
            (
                "train.py",
                "        checkpoint = rd.load_checkpoint(model, optimizer, args.resume, scheduler=scheduler)\n",
                """\
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
""",
            )
        ],
        cause=("RF503",),
        check="devices",
        note="runs through and resumes; with GPUs every rank also takes memory of GPU 0",
    ),
    Bug(
        id="24",
        title="every rank opens a TensorBoard writer in the same folder",
        project="gan",
        edits=[("train.py", "rd.output.on_main_process(SummaryWriter, args.out)", "SummaryWriter(args.out)")],
        cause=("RF505",),
        check="logs",
        note="runs through; one event file per rank, or both in one if they start in the same second",
    ),
    Bug(
        id="24b",
        title="the axis of the curves counts rank 0's images: it grows slower with more ranks",
        project="gan",
        edits=[("train.py", "            num_images += global_batch\n", "            num_images += len(real)\n")],
        cause=("RF506",),
        check="logs",
        note="runs through; with --batch global the curves end at half the images",
    ),
    Bug(
        id="25",
        title="the parser knows --local_rank, the launcher passes --local-rank",
        project="metric_learning",
        edits=[
            (
                "train.py",
                "    rd.add_runtime_flags(parser)\n",
                """\
    parser.add_argument("--local_rank", type=int, default=-1, help="passed by torch.distributed.launch")
""",
            )
        ],
        cause=("RF601",),
        check="launch",
        note="torch.distributed.launch: both ranks exit with status 2, unrecognized arguments: --local-rank=0",
    ),
    Bug(
        id="25b",
        title="the port is written into the script: the launcher's is overridden, and two jobs collide",
        project="language_model",
        edits=[
            ("train.py", "import math\n", "import math\nimport os\n"),
            (
                "train.py",
                LM_SETUP,
                '    os.environ["MASTER_ADDR"] = "localhost"\n    os.environ["MASTER_PORT"] = "29511"\n' + LM_SETUP,
            ),
        ],
        cause=("RF602",),
        check="launch",
        note="torchrun: nobody listens on that port, a hang at the start; other launchers: two jobs collide",
    ),
]
