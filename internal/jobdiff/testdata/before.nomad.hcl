job "d" {
  datacenters = ["dc1","dc2"]
  meta { a = "1" }
  constraint { 
    attribute = "${attr.kernel.name}" 
    value = "linux"
  }
  group "g" {
    count = 1
    network {
      port "http" { to = 80 }
    }
    service { 
      name = "s" 
      port = "http" 
      provider = "nomad"
      tags = ["a","b"]
      check { 
        type = "http" 
        path = "/" 
        interval = "10s" 
        timeout = "2s"
      }
    }
    task "t" {
      driver = "raw_exec"
      config { 
        command = "/bin/sleep" 
        args = ["1000"]
      }
      env { A = "b" }
      resources { 
        cpu = 100
        memory = 64
      }
      template { 
        data = "x" 
        destination = "local/x"
      }
      artifact { source = "http://a/b" }
    }
    task "u" { 
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
  group "old" { 
    task "x" { 
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
}
