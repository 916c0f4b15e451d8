import numpy as np
import torch


def evaluate(model, loss_fn, dataloader, metrics, params):
    """metrics over a whole loader, predictions are collected first"""
    model.eval()
    all_scores, all_labels, loss = [], [], 0.0
    with torch.no_grad():
        for images, labels in dataloader:
            if params.cuda:
                images, labels = images.cuda(), labels.cuda()
            scores = model(images)
            loss += loss_fn(scores, labels).item() * len(labels)
            all_scores.append(scores.cpu().numpy())
            all_labels.append(labels.cpu().numpy())
    all_scores, all_labels = np.concatenate(all_scores), np.concatenate(all_labels)
    result = {name: float(fn(all_scores, all_labels)) for name, fn in metrics.items()}
    result['loss'] = loss / len(all_labels)
    return result
