"""Use of trained models: tasks, chat, images, serving."""
