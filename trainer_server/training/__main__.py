"""`python -m trainer_server.training`: the trainer process."""

import gc

if __name__ == "__main__":
    # The modules of torch and transformers stay for good. To look through them for garbage again and again while they
    # are imported would take a quarter of the start.
    gc.disable()
    from trainer_server.training.worker import main

    gc.freeze()
    gc.enable()
    main()
