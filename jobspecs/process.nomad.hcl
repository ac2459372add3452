# A plain process on the host, without a container, on a share of a card. The node's driver config must switch the
# process runtime on: plugin "heteroflow" { config { process { enabled = true } } }.

variable "command" {
  type    = string
  default = "/bin/sh"
}

variable "args" {
  type    = list(string)
  default = ["-c", "echo cards: $HETEROFLOW_CARDS memory: $HETEROFLOW_MEMORY_MIB MiB"]
}

job "process-example" {
  type = "batch"

  group "main" {
    task "main" {
      driver = "heteroflow"

      config {
        runtime = "process"
        command = var.command
        args    = var.args

        accelerator {
          memory = "8GiB"
        }
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
