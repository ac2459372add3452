# One service that runs on either of two brands: the driver takes the image of the brand whose card was granted.

variable "nvidia_image" {
  type    = string
  default = "heteroflow/sim-inference:nvidia"
}

variable "ascend_image" {
  type    = string
  default = "heteroflow/sim-inference:ascend"
}

variable "args" {
  type    = list(string)
  default = ["-model", "sim-two-brand"]
}

variable "provider" {
  type    = string
  default = "nomad"
}

job "two-brand" {
  type = "service"

  group "serve" {
    network {
      port "http" {}
    }

    service {
      name     = "two-brand"
      provider = var.provider
      port     = "http"
      tags     = ["heteroflow.model=sim-two-brand"]

      check {
        type     = "http"
        path     = "/health"
        interval = "2s"
        timeout  = "1s"
      }
    }

    task "engine" {
      driver = "heteroflow"

      config {
        images = {
          nvidia = var.nvidia_image
          ascend = var.ascend_image
        }
        command = "/heteroflow-sim-inference"
        args    = var.args
        ports   = ["http"]

        accelerator {
          memory = "30GiB"
          vendor = ["nvidia", "ascend"]
        }
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
