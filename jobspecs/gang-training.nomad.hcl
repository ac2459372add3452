# A gang of two members with one whole card each, for training over several nodes: both start together or not at all, and
# each finds its rank and the other in its environment, as torchrun and PyTorch read it.

variable "runtime" {
  type    = string
  default = "docker"
}

variable "image" {
  type    = string
  default = "python:3.12-slim"
}

variable "command" {
  type    = string
  default = "/bin/sh"
}

variable "args" {
  type        = list(string)
  default     = ["-c", "echo rank $RANK of $WORLD_SIZE meets at $MASTER_ADDR:$MASTER_PORT"]
  description = "what to run; with PyTorch for example torchrun and train.py, which need no more options"
}

variable "members" {
  type    = number
  default = 2
}

job "gang-training" {
  type = "batch"

  group "workers" {
    count = var.members

    network {
      port "master" {}
    }

    task "main" {
      driver = "heteroflow"

      config {
        runtime = var.runtime
        image   = var.image
        command = var.command
        args    = var.args

        accelerator {
          count = 1
        }

        gang {
          framework     = "ddp"
          start_timeout = "5m"
          on_lost       = "restart_gang"
        }
      }

      resources {
        cpu    = 200
        memory = 256
      }
    }
  }
}
