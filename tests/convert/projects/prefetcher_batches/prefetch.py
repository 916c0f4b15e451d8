import torch


class Prefetcher:
    """Copies the next batch to the GPU while the model works on this one."""

    def __init__(self, loader, device):
        self.batches = iter(loader)
        self.device = device
        self.stream = torch.cuda.Stream() if device.type == 'cuda' else None
        self.preload()

    def preload(self):
        try:
            self.next_images, self.next_labels = next(self.batches)
        except StopIteration:
            self.next_images = None
            self.next_labels = None
            return
        if self.stream is None:
            return
        with torch.cuda.stream(self.stream):
            self.next_images = self.next_images.to(self.device, non_blocking=True)
            self.next_labels = self.next_labels.to(self.device, non_blocking=True)

    def next(self):
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        images, labels = self.next_images, self.next_labels
        self.preload()
        return images, labels
