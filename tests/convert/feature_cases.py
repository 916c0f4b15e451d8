"""Legacy single-GPU projects, each about one pattern that a conversion to several processes has to handle."""

from __future__ import annotations

from convert.case import Case

FEATURE_CASES = [
    Case(
        name="dataparallel_always",
        arguments=["--epochs", "2"],
        checkpoint="weights/model.pth",
        resume=["--resume", "{checkpoint}", "--epochs", "3"],
        note="unconditional nn.DataParallel; saves and loads through model.module",
    ),
    Case(
        name="dataparallel_if_cuda",
        arguments=["--epochs", "2"],
        checkpoint="checkpoint/net.pth",
        resume=["--continue_training", "--epochs", "1"],
        note="nn.DataParallel and cudnn.benchmark if device == 'cuda'; saves the state_dict of whatever it has",
    ),
    Case(
        name="dataparallel_if_several",
        arguments=["--epochs", "2"],
        checkpoint="saved_models/har_last.pth",
        resume=["--pretrained", "{checkpoint}"],
        note="nn.DataParallel if torch.cuda.device_count() > 1; hasattr(model, 'module') at the checkpoint",
    ),
    Case(
        name="gan_two_optimizers",
        arguments=["--niter", "2"],
        checkpoint="samples/netG_epoch_1.pth",
        resume=["--netG", "{checkpoint}", "--netD", "samples/netD_epoch_1.pth", "--niter", "1", "--outf", "more"],
        note="DCGAN: two models, two backward passes of D per step, fake used again for G, samples of fixed_noise",
    ),
    Case(
        name="gan_legacy_tensor",
        arguments=["--epochs", "2"],
        checkpoint="generator.pth",
        note="Tensor = torch.cuda.FloatTensor or torch.FloatTensor, Variable, noise of np.random",
    ),
    Case(
        name="batch_size_in_view",
        arguments=[],
        checkpoint="ckpt/net.ckpt",
        note="a constant batch_size in the loader, in reshape(batch_size, -1) and in torch.ones(batch_size, 1)",
    ),
    Case(
        name="vae_sum_loss",
        arguments=["--epochs", "2"],
        checkpoint="results/vae.pth",
        note="loss summed over the batch; model.decode(z) beside forward",
    ),
    Case(
        name="detection_counts",
        arguments=["--epochs", "2"],
        checkpoint="spots.pth",
        note="sums divided by the number of spots in the batch, a mean by its size; optimizer and loss from tables",
    ),
    Case(
        name="plateau_early_stop",
        arguments=["--epochs", "8", "--batch_size", "24", "--lr", "0.05", "--patience", "2"],
        checkpoint="checkpoint.pt",
        note="ReduceLROnPlateau and EarlyStopping decide on the validation loss; the best weights are tested",
    ),
    Case(
        name="lr_by_hand",
        arguments=["--epochs", "2", "--lr-steps", "1", "--seed", "3"],
        checkpoint="checkpoint.pth.tar",
        resume=["--resume", "{checkpoint}", "--epochs", "3"],
        note="param_group['lr'] set from args.lr by epoch, and by iteration of len(train_loader) for the warm up",
    ),
    Case(
        name="onecycle_len_loader",
        arguments=["--epochs", "2"],
        checkpoint="spectra_final.pth",
        note="OneCycleLR and polynomial LambdaLR over epochs * len(train_loader) steps; an optimizer per submodule",
    ),
    Case(
        name="accumulation",
        arguments=["--num_epochs", "2"],
        checkpoint="output/pytorch_model.bin",
        note="gradient accumulation over 2 batches, loss / accum; collate_fn pads to the longest of the batch",
    ),
    Case(
        name="amp_clip_ema",
        arguments=["--epochs", "2"],
        checkpoint="exp/last.pt",
        resume=["--resume", "{checkpoint}", "--epochs", "3"],
        note="GradScaler and autocast on CUDA only, clip_grad_norm_ after unscale_, EMA copy evaluated and saved",
    ),
    Case(
        name="weighted_sampler",
        arguments=["2"],
        checkpoint="defectnet.pt",
        note="WeightedRandomSampler in the training loader; tabs; sys.argv",
    ),
    Case(
        name="subset_random_sampler",
        arguments=["--epochs", "2"],
        checkpoint="phase_net.pth",
        note="SubsetRandomSampler for training and validation over one dataset, indices from np.random.shuffle",
    ),
    Case(
        name="random_split_unseeded",
        arguments=["--epochs", "2"],
        checkpoint="best_model.pth",
        note="random_split without a generator and no seed anywhere; accuracy stays a tensor",
    ),
    Case(
        name="tensorboard_runs",
        arguments=["--epochs", "2"],
        checkpoint="runs/run_*/latest.pth.tar",
        resume=["--resume", "{checkpoint}", "--epochs", "3"],
        note="run directory numbered by what exists, SummaryWriter, config dump, shutil.copyfile(latest, best)",
    ),
    Case(
        name="timestamp_dir_csv_plots",
        arguments=["--epochs", "2"],
        checkpoint="experiments/*/weights.pth",
        note="run directory named by the time, csv opened with 'a', logging.FileHandler, plots after each epoch",
    ),
    Case(
        name="in_batch_contrastive",
        arguments=["--epochs", "2"],
        checkpoint="pretrained.pth.tar",
        resume=["--resume", "{checkpoint}", "--epochs", "3"],
        refused="the loss couples the samples of a batch: in-batch negatives change their meaning with the batch per "
        "process",
        note="NT-Xent loss whose labels are built from args.batch_size",
    ),
    Case(
        name="whole_model_pickle",
        arguments=["--epoch", "2"],
        checkpoint="model/char_lenet.pkl",
        resume=["--resume", "{checkpoint}", "--epoch", "1"],
        note="torch.save(model) as a whole, torch.load(weights_only=False) to continue; accuracy by hand",
    ),
    Case(
        name="auto_resume",
        arguments=["--epochs", "2"],
        checkpoint="checkpoint/last.pt",
        resume=["--epochs", "3"],
        note="resumes without a flag if the checkpoint exists; options from a YAML file",
    ),
    Case(
        name="iou_evaluator",
        arguments=["--epochs", "3"],
        checkpoint="run/fields/experiment_*/checkpoint.pth.tar",
        resume=["--resume", "{checkpoint}", "--epochs", "4"],
        note="confusion matrix in numpy, ignored pixels of uneven number, Saver with experiment_N, get_1x_lr_params",
    ),
    Case(
        name="recurrent_hidden_state",
        arguments=["--epochs", "2"],
        checkpoint="lm.pt",
        refused="the hidden state is carried over from batch to batch, the batches are cut from one sequence",
        note="batchify and get_batch in place of a DataLoader; parameters updated by hand; lr / 4 by validation loss",
    ),
    Case(
        name="iterable_dataset",
        arguments=["--epochs", "2"],
        checkpoint="bow.pt",
        note="IterableDataset that streams lines of a text file",
    ),
    Case(
        name="two_inputs_random_pairs",
        arguments=["--epochs", "2", "--save-model"],
        checkpoint="siamese_signatures.pt",
        resume=["--init", "{checkpoint}"],
        note="model(x1, x2); the dataset draws pairs with Python's random in __getitem__",
    ),
    Case(
        name="graph_and_reload",
        arguments=["--epochs", "2"],
        checkpoint="saved/rings_*/best.pt",
        note="the model's graph is drawn before it trains; the best weights are loaded again from a folder named by "
        "the time; BatchNorm; path.open",
    ),
    Case(
        name="trained_loss",
        arguments=["--epochs", "2"],
        checkpoint="net.pt",
        note="a loss with parameters and an optimizer of its own, its gradients scaled by hand; a trained tensor that "
        "is part of no model; an uneven last batch",
    ),
    Case(
        name="options_for_one_process",
        arguments=["--epochs", "2"],
        checkpoint="surface.pt",
        note="an optimizer and a loss for one process alone, under options",
    ),
    Case(
        name="random_crops",
        arguments=[],
        checkpoint="out/best.pt",
        note="batches are random crops of one text; estimate_loss draws its own; the first batch is drawn ahead",
    ),
    Case(
        name="permuted_slices",
        arguments=[],
        checkpoint="points.pt",
        note="no loader: a generator cuts a permutation of tensors into batches, the last one uneven",
    ),
    Case(
        name="offline_replay",
        arguments=[],
        checkpoint="q_net.pt",
        note="no loader: a replay buffer of recorded transitions is sampled, noise is drawn per batch",
    ),
]
