# A shared inference service: two replicas, each with a 20 GiB share of a card of any brand, found by the gateway
# through the service's model tag.
#
#   nomad job run shared-inference.nomad.hcl                       # NOMAD_ADDR at the placement service
#   curl http://127.0.0.1:8080/v1/chat/completions -d '{"model":"sim-7b","messages":[{"role":"user","content":"hi"}]}'
#
# The engine here is the simulated one, which needs no card. With real cards set image to vLLM or SGLang, and args
# to, for example, ["--model", "Qwen/Qwen2.5-7B-Instruct", "--port", "${NOMAD_PORT_http}"].

variable "runtime" {
  type        = string
  default     = "docker"
  description = "docker, or process where the node's plugin config allows it"
}

variable "image" {
  type    = string
  default = "heteroflow/sim-inference:dev"
}

variable "command" {
  type        = string
  default     = "/heteroflow-sim-inference"
  description = "the engine's program in the image, or on the host with the process runtime"
}

variable "args" {
  type    = list(string)
  default = ["-model", "sim-7b", "-token-rate", "50"]
}

variable "replicas" {
  type    = number
  default = 2
}

variable "provider" {
  type        = string
  default     = "nomad"
  description = "where the service is registered: consul, or nomad where there is no Consul"
}

job "sim-llm" {
  type = "service"

  group "serve" {
    count = var.replicas

    network {
      port "http" {}
    }

    service {
      name     = "sim-llm"
      provider = var.provider
      port     = "http"
      tags     = ["heteroflow.model=sim-7b"]

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
        runtime = var.runtime
        image   = var.image
        command = var.command
        args    = var.args
        ports   = ["http"]

        accelerator {
          memory  = "20GiB" # of one card; leave it out for whole cards
          compute = 30      # percent of the card's compute
        }
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
