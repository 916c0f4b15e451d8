"""Files and folders: what writes, changes, finds and reads them."""

from __future__ import annotations

import re
from collections.abc import Collection

from retrofit.analysis.python_api import CLOCKS

from . import runtime

# Functions that write a file as a whole.
WRITERS = frozenset({
    "torch.save", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt", "json.dump",
    "pickle.dump", "yaml.dump", "yaml.safe_dump", "matplotlib.pyplot.savefig", "torchvision.utils.save_image",
    "cv2.imwrite", "cv2.imwritemulti", "skimage.io.imsave", "skvideo.io.vwrite", "mediapy.write_image",
    "scipy.misc.imsave", "scipy.io.savemat", "joblib.dump", "dill.dump", "torchvision.io.write_png",
    "torchvision.io.write_jpeg", "logging.config.dictConfig", "logging.config.fileConfig", "torch.jit.save",
    "torch.onnx.export", "soundfile.write", "torchaudio.save", "torchvision.io.write_video", "scipy.io.wavfile.write",
    "librosa.output.write_wav", "os.fsync", "safetensors.torch.save_file", "safetensors.torch.save_model",
    "matplotlib.pyplot.imsave", "matplotlib.image.imsave", "omegaconf.OmegaConf.save", "torchaudio.backend.save",
    "cloudpickle.dump", "toml.dump", "nibabel.save", "tifffile.imwrite", "tifffile.imsave",
    "SimpleITK.WriteImage", "numpy.lib.format.write_array", "shutil.make_archive",
    "ase.io.write", "meshio.write", "nrrd.write", "itk.imwrite", "mcubes.export_obj", "mcubes.export_mesh",
    "trimesh.exchange.export.export_mesh", "rdkit.Chem.MolToMolFile", "rdkit.Chem.MolToPDBFile",
    "rdkit.Chem.MolToXYZFile", "rdkit.Chem.Draw.MolToFile", "torch.export.save", "zarr.save",
    "onnx.save", "onnx.save_model", "plotly.io.write_image", "plotly.io.write_html", "cPickle.dump", "_pickle.dump",
    "simplejson.dump", "ujson.dump", "msgpack.pack", "marshal.dump", "tomli_w.dump",
    *(f"imageio.{version}{kind}{verb}" for version in ("", "v2.", "v3.") for kind in ("im", "mim", "vol", "mvol")
      for verb in ("write", "save")),
})  # fmt: skip
# Those of them that are given the path first, and what is written after it.
PATH_FIRST = frozenset(name for name in WRITERS if re.search(r"\.m?(im|vol)(write|save)|numpy\.save", name))
# Functions and methods of other libraries that say by their names that they write files, or make a folder; each returns
# something of its own interest: timm's CheckpointSaver.save_checkpoint.
SAVES_BY_NAME = re.compile(
    r"(?!(torch|retrofit|multigpu|accelerate|lightning|pytorch_lightning|deepspeed)\.).*\.(save|write)_[a-z]+"
    r"|timm\.utils\.(summary\.)?(get_outdir|update_summary)|medmnist\.(evaluator\.)?Evaluator\.evaluate"
    r"|evaluate\.save"
)
# Those that return the text where they are given no file.
TO_TEXT = frozenset({"yaml.dump", "yaml.safe_dump"})
# Those that keep a training's state, and those that read it.
SAVES_STATE = frozenset({"torch.save", runtime.SAVE_CHECKPOINT})
LOADS_STATE = frozenset({"torch.load", runtime.READ_CHECKPOINT})
# Functions that send something, and may be asked what came back.
SENDERS = frozenset({"requests.post", "requests.put", "requests.patch"})
# Methods of whatever object that send something: to a store of files, a database, by mail or to a chat.
SENDS = frozenset({
    "push_to_hub", "upload_file", "upload_folder", "upload_fileobj", "upload_from_filename", "sendmail", "send_message",
    "insert_one", "insert_many", "update_one", "update_many", "replace_one",
})  # fmt: skip
# Methods of whatever object that write a file, or change one; those among them that keep data to be read again.
KEEPS_DATA = frozenset({"save_pretrained", "tofile", "to_parquet", "to_hdf", "to_feather", "save_to_disk"})
WRITING_METHODS = KEEPS_DATA | SENDS | {
    "savefig", "to_csv", "to_json", "to_pickle", "write_text", "write_bytes", "mkdir", "unlink", "touch", "writerow",
    "writerows", "writeheader", "save_weights", "to_excel", "write_image", "write_html", "export_chrome_trace",
    "write_videofile", "write_gif", "to_netcdf",
    "export_stacks", "write_png", "symlink_to", "rmdir",
}  # fmt: skip
# Methods of the objects of some libraries that write them to a file: PlyData([vertices]).write(path).
WRITES_OBJECT = {
    "write": ("plyfile.", "xml.etree.ElementTree.", "lxml.etree.", "laspy."), "export": ("trimesh.",),
    "save_as": ("pydicom.",), "export_mesh": ("trimesh.",),
    "save": ("matplotlib.animation.", "tokenizers.", "gensim.", "pygltflib.", "music21.", "mido."),
}  # fmt: skip
# Methods of whatever object by which their arguments get into a file.
SAVE_METHODS = SENDS | {"write", "writelines", "writerow", "writerows", "dump", "save", "savez"}
# Methods by which the object itself does.
SAVES_ITSELF = frozenset({
    "to_csv", "to_json", "to_excel", "to_pickle", "to_parquet", "to_hdf", "to_feather", "to_html", "to_latex", "tofile",
    "save", "savefig",
})  # fmt: skip
# The parameters of writers up to the one with the path, and its name.
PATH_PARAMETERS = {
    "torch.save": (["obj", "f"], "f"), "torch.jit.save": (["m", "f"], "f"), "joblib.dump": (["value", "file"], "file"),
    "numpy.savetxt": (["fname"], "fname"), "safetensors.torch.save_file": (["tensors", "filename"], "filename"),
    "to_csv": (["path_or_buf"], "path_or_buf"), "to_json": (["path_or_buf"], "path_or_buf"),
}  # fmt: skip
PATH_POSITIONS = {"torch.save": 1, "torchvision.utils.save_image": 1, "torchvision.io.write_png": 1}  # others: 0

# Files that are held open, and buffers in memory that look like them.
OPENERS = frozenset({
    "open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "h5py.File", "zipfile.ZipFile",
    "tarfile.open", "bz2.BZ2File", "gzip.GzipFile", "lzma.LZMAFile",
})  # fmt: skip
BUFFERS = frozenset({"io.BytesIO", "io.StringIO"})
# Files that stay open while they are filled through an object: the parameters up to the mode, and the modes that write
# (none where they are always written, "" for a file that is where no mode is given).
STORES: dict[str, tuple[list[str], Collection[str]]] = {
    **dict.fromkeys(["numpy.memmap", "numpy.core.memmap"], (["filename", "dtype", "mode"], "w")),
    "numpy.lib.format.open_memmap": (["filename", "mode"], "w"), "tables.open_file": (["filename", "mode"], "wa"),
    **dict.fromkeys([f"zarr.{name}" for name in ("open", "open_group", "open_array")], (["store", "mode"], "wa")),
    "netCDF4.Dataset": (["filename", "mode"], "wa"), "pandas.HDFStore": (["path", "mode"], "wa"),
    "shelve.open": (["filename", "flag"], ("", *"cnw")), "dbm.open": (["file", "flag"], "cnw"),
    "wave.open": (["file", "mode"], "w"), "webdataset.TarWriter": ([], ""), "webdataset.ShardWriter": ([], ""),
    "rdkit.Chem.SDWriter": ([], ""), "rdkit.Chem.PDBWriter": ([], ""),
    "ase.io.Trajectory": (["filename", "mode"], "wa"),
    "pandas.ExcelWriter": ([], ""), "pyarrow.parquet.ParquetWriter": ([], ""), "cv2.VideoWriter": ([], ""),
    "imageio.get_writer": ([], ""), "imageio.v2.get_writer": ([], ""), "skvideo.io.FFmpegWriter": ([], ""),
    "tensorflow.io.TFRecordWriter": ([], ""),
    "matplotlib.backends.backend_pdf.PdfPages": ([], ""), "matplotlib.animation.FFMpegWriter": ([], ""),
}  # fmt: skip
# What opens a database, with the name of one in memory, where there is such.
DATABASES = {
    "sqlite3.connect": ":memory:", "duckdb.connect": ":memory:", "sqlalchemy.create_engine": "sqlite://",
    "sqlalchemy.engine.create_engine": "sqlite://", "lmdb.open": "", "lmdb.Environment": "",
}  # fmt: skip

# Functions that change files and folders; those that run a command of the system; those that copy.
RUNNERS = ("call", "run", "check_call", "check_output", "getoutput", "getstatusoutput", "Popen")
COMMANDS = frozenset({"os.system", "os.popen", *(f"subprocess.{name}" for name in RUNNERS)})
FILE_COPIES = frozenset(f"shutil.{name}" for name in ("copy", "copyfile", "copy2", "copytree", "move"))
FILE_CHANGERS = COMMANDS | FILE_COPIES | {
    "os.makedirs", "os.mkdir", "os.remove", "os.unlink", "os.rename", "os.replace", "os.rmdir", "os.removedirs",
    "shutil.rmtree", "os.symlink", "os.link", "os.truncate", "os.renames",
    "urllib.request.urlretrieve", "urllib.urlretrieve", "torch.hub.download_url_to_file", "shutil.unpack_archive",
}  # fmt: skip
REMOVERS = frozenset({"os.remove", "os.unlink", "os.rmdir", "shutil.rmtree", "unlink", "rmdir"})
RETURNS_SOMETHING = (
    COMMANDS | FILE_COPIES | {"shutil.make_archive", "urllib.request.urlretrieve"}
)  # of a script's own interest
# Functions and methods that fetch files, or unpack them.
FETCHES = frozenset(
    {"urllib.request.urlretrieve", "shutil.unpack_archive", "lmdb.open", "torch.hub.download_url_to_file"}
)
TRAINS_INTO_FILE = frozenset(f"sentencepiece.SentencePieceTrainer.{name}" for name in ("train", "Train"))
# Data sets that fetch and prepare what is missing when they are made, without being told; fetching functions.
SELF_PREPARING = (
    "torch_geometric.datasets.", "ogb.graphproppred.", "ogb.nodeproppred.", "ogb.linkproppred.", "dgl.data.",
    "torchtext.datasets.", "torchtext.legacy.datasets.", "torchtext.vocab.GloVe", "torchtext.vocab.FastText",
    "sklearn.datasets.fetch_", "tensorflow_datasets.load", "gensim.downloader.load",
    "nltk.download", "gdown.download", "wget.download", "torchvision.datasets.utils.download_", "kagglehub.",
)  # fmt: skip
# Data sets of torchvision that fetch what is missing if they are told to, by the place of that argument.
TORCHVISION = "torchvision.datasets."
DOWNLOAD_PLACES = {
    3: "MovingMNIST SUN397 SEMEION SBU VOCSegmentation VOCDetection Caltech256 SBDataset Places365 EuroSAT Imagenette",
    4: "CIFAR10 CIFAR100 MNIST FashionMNIST KMNIST SVHN USPS Omniglot StanfordCars Flowers102 Caltech101 WIDERFace "
    "Food101 GTSRB CLEVRClassification PCAM Country211 RenderedSST2 PhotoTour",
    5: "STL10 CelebA Kitti INaturalist LFWPeople LFWPairs DTD FGVCAircraft",
    6: "OxfordIIITPet",
}
# Classes of libraries of which a derived one does so.
DOWNLOADING_BASES = frozenset({
    "torch_geometric.data.InMemoryDataset", "torch_geometric.data.Dataset", "torch_geometric.data.dataset.Dataset",
    "torch_geometric.data.in_memory_dataset.InMemoryDataset", "torch_geometric.data.OnDiskDataset",
    "dgl.data.DGLDataset", "dgl.data.DGLBuiltinDataset",
})  # fmt: skip
UNPACK_METHODS = frozenset({"extractall"})

# What is made in them is the process's own, unless they are in a folder of the script: the position of `dir`.
OWN_FOLDERS = {
    "tempfile.TemporaryDirectory": 2, "tempfile.mkstemp": 2, "tempfile.NamedTemporaryFile": 6,
    "tempfile.TemporaryFile": 6, "tempfile.SpooledTemporaryFile": 7,
}  # fmt: skip
MOVES = frozenset({*FILE_COPIES, "os.rename", "os.replace", "os.renames", "os.link"})  # to their second argument

# Questions whether a path exists, and what there is in a folder; errors that say that it does not.
EXISTS_METHODS = frozenset({"exists", "is_file", "is_dir"})
EXISTS = frozenset(
    {
        *(f"os.path.{name}" for name in ("exists", "isfile", "isdir", "lexists")),
        *(f"pathlib.Path.{name}" for name in EXISTS_METHODS),
    }
)
LISTS = frozenset({"os.listdir", "os.scandir", "os.walk", "glob.glob", "glob.iglob"})
LISTS_METHODS = frozenset({"iterdir", "glob", "rglob"})
MISSING_ERRORS = frozenset({"FileNotFoundError", "OSError", "IOError", "EnvironmentError"})

# What reads a file as a whole, or what is in a folder; methods of whatever object that read one.
READERS = LISTS | {
    "torch.load", runtime.READ_CHECKPOINT, "torch.jit.load", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt",
    "numpy.fromfile", "pickle.load", "json.load", "yaml.load", "yaml.safe_load", "joblib.load", "cv2.imread",
    "PIL.Image.open", "imageio.imread", "imageio.v2.imread", "imageio.v3.imread", "skimage.io.imread",
    "matplotlib.pyplot.imread", "scipy.io.loadmat", "scipy.io.wavfile.read", "torchvision.io.read_image",
    "torchaudio.load", "soundfile.read", "librosa.load", "safetensors.torch.load_file", "toml.load",
    "torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder", "open", "io.open", "codecs.open",
    "gzip.open", "bz2.open", "h5py.File", "zipfile.ZipFile", "tarfile.open", "pandas.HDFStore",
    "numpy.memmap", "zarr.open", "os.path.getsize", "os.stat",
    *(f"pandas.read_{kind}" for kind in ("csv", "table", "json", "pickle", "parquet", "hdf", "feather", "excel")),
}  # fmt: skip
ENTERS = frozenset({"os.chdir", "contextlib.chdir"})  # a folder, which has to be there
READING_METHODS = LISTS_METHODS | {"read_text", "read_bytes", "from_pretrained"}
# Commands that leave no file for the script to read.
HARMLESS_COMMANDS = frozenset({"mkdir", "rm", "rmdir", "clear", "cls", "nvidia-smi", "kill", "chmod", "tput"})

# The time, and names made of it or of chance: other ones in each process.
DATES = frozenset({"time.time", "datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow"})
OWN_CLOCKS = DATES | CLOCKS  # of each process
# What gives a process a name that no other one has; what gives a file or a folder another name.
OWN_NAMES = frozenset({"uuid.uuid1", "uuid.uuid4", "tempfile.mkdtemp", "tempfile.mktemp", "os.getpid"})
RENAMES = frozenset({"os.rename", "os.replace", "shutil.move"})
UNIQUE_NAMES = frozenset({
    "time.strftime", "time.ctime", "time.asctime", "uuid.uuid1", "uuid.uuid4", "tempfile.mkdtemp",
    *(f"{date}.{method}" for date in DATES for method in ("strftime", "isoformat", "ctime")),
})  # fmt: skip


def prepares_itself(name: str) -> bool:
    """Return whether a function or a class of a library fetches or prepares files without being told."""
    last = name.rpartition(".")[2]
    is_class = last[:1].isupper() and last != "Evaluator"
    return name.startswith(SELF_PREPARING) and (is_class or not name.startswith(("ogb.", "dgl.")))


def parameters_to_download(names: Collection[str]) -> list[str]:
    """Return the parameters up to `download` of the data set that one of these names is, none of another one."""
    classes = {name.rpartition(".")[2] for name in names if name.startswith(TORCHVISION)}
    if not classes:
        return []
    places = [place for place, listed in DOWNLOAD_PLACES.items() if classes.intersection(listed.split())]
    return ["_"] * places[0] + ["download"] if places else []
