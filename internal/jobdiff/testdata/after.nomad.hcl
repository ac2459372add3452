job "d" {
  datacenters = ["dc1","dc3"]
  meta { 
    a = "2" 
    b = "1"
  }
  priority = 70
  constraint { 
    attribute = "${attr.kernel.name}" 
    value = "linux"
  }
  constraint { 
    attribute = "${attr.cpu.arch}" 
    value = "amd64"
  }
  group "g" {
    count = 3
    network {
      port "http" { to = 81 }
      port "adm" {}
    }
    service { 
      name = "s" 
      port = "http" 
      provider = "nomad"
      tags = ["a","c"]
      check { 
        type = "http" 
        path = "/h" 
        interval = "10s" 
        timeout = "2s"
      }
    }
    task "t" {
      driver = "raw_exec"
      config { 
        command = "/bin/sleep" 
        args = ["1001"]
        cgroup_v2_override = "x"
      }
      env { 
       A = "c" 
       B = "x"
      }
      kill_timeout = "9s"
      resources { 
        cpu = 150
        memory = 64
        device "nvidia/gpu" { 
          count = 2 
          constraint { 
            attribute = "${device.model}" 
            value = "x"
          }
        }
      }
      template { 
        data = "y" 
        destination = "local/x"
      }
      artifact { source = "http://a/c" }
    }
  }
  group "new" { 
    task "x" { 
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
}
