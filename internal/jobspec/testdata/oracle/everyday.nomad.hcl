variable "image" {
  type = string
  default = "redis:7"
}
variable "n" { 
  type = number
  default = 2 
}
variable "ports" { default = ["http","admin"] }
locals { 
  full = "${var.image}-x" 
  m = { a = "1", b = 2 }
}
job "llm" {
  datacenters = ["dc1"]
  meta { a = "b" }
  priority = "60"
  vault { policies = ["x"] }
  constraint {
    attribute = "${attr.kernel.name}"
    value = "linux"
  }
  constraint {
    operator = "distinct_hosts"
    value = "true"
  }
  constraint { 
    distinct_hosts = true 
  }
  constraint { 
    attribute = "${attr.a}"
    regexp = "abc" 
  }
  affinity {
    attribute = "${node.datacenter}"
    set_contains_any = "a,b"
    weight = 20
  }
  group "g" {
    count = var.n
    network {
      mode = "bridge"
      port "http" { static = 80 }
      port "x" {}
      dynamic "port" {
        for_each = ["p1","p2"]
        labels = [port.value]
        content { to = 1000 + port.key }
      }
    }
    volume "v" {
      type = "host"
      source = "s"
    }
    service {
      name = "svc"
      port = "http"
      tags = ["${NOMAD_ALLOC_ID}", "a-${var.image}"]
      check {
        type = "http"
        path = "/"
        interval = "10s"
        timeout = "2s"
        header { X = ["a","b"] }
      }
    }
    restart { attempts = 1 }
    task "t" {
      driver = "docker"
      kill_timeout = "20s"
      config {
        image = local.full
        ports = ["http"]
        args = ["-p", "${NOMAD_PORT_http}", "${env["HOME"]}", "${attr.cpu.arch}", "$${x}", "${meta.foo}", "${node.unique.id}", "${device.model}", "%%{x}"]
        num = 1
        f = 1.5
        b = true
        nul = null
        obj = { a = { b = [1,2] } }
        mount { 
          type = "bind"
          opts { a = "b" }
        }
        mount { type = "tmpfs" }
        accelerator { memory = "20GiB" }
        port_map = { a = 80 }
      }
      env { 
        A = "b"
        B_c = 5
        C = true
        D = "${upper("x")}-${NOMAD_TASK_NAME}"
      }
      meta = { x = "y" }
      template {
        data = <<EOH
{{ key "x" }} ${NOMAD_X} 
${env["foo"]}
EOH
        destination = "local/x"
      }
      resources {
        cpu = 100
        memory = 128
        device "nvidia/gpu" {
          count = 2
          constraint {
            attribute = "${device.attr.memory}"
            operator = ">="
            value = "20 GiB"
          }
          affinity {
            attribute = "${device.model}"
            value = "x"
          }
        }
        network { 
          mbits = 10 
          port "old" {}
        }
      }
      artifact { 
        source = "http://x" 
        options { checksum = "md5:xx" }
      }
      logs { 
        max_files = 3 
        max_file_size = 5
      }
    }
  }
  task "solo" { 
    driver = "exec" 
    config { command = "/bin/true" }
  }
}
