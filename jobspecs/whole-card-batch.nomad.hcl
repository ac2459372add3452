# A batch job on one whole card of a brand and model, for training or an offline run. It ends by itself and gives
# the card back.

variable "runtime" {
  type    = string
  default = "docker"
}

variable "image" {
  type    = string
  default = "heteroflow/sim-inference:dev"
}

variable "command" {
  type    = string
  default = "/heteroflow-sim-inference"
}

variable "args" {
  type        = list(string)
  default     = ["-version"]
  description = "what to run; here a program that ends at once"
}

job "train" {
  type = "batch"

  group "train" {
    task "main" {
      driver = "heteroflow"

      config {
        runtime = var.runtime
        image   = var.image
        command = var.command
        args    = var.args

        accelerator {
          count  = 1
          vendor = ["nvidia"]
          model  = ["A100*"]
        }
      }

      resources {
        cpu    = 200
        memory = 256
      }
    }
  }
}
