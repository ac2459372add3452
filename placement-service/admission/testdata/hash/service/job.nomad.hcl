job "llm" {
  datacenters = ["dc1"]
  group "serve" {
    count = 2
    network {
 port "http" {}
 }
    service {
      name = "llm"
      port = "http"
      provider = "nomad"
      check {
 type="http"
 path="/health"
 interval="5s"
 timeout="2s"
 }
    }
    update { max_parallel = 1 }
    task "vllm" {
      driver = "heteroflow"
      config {
        image = "x"
        accelerator {
          count = 1
          memory = "20GiB"
          compute = 30
          vendor = ["nvidia","ascend"]
        }
      }
      env { A = "1" }
      template {
        data = "x"
        destination = "local/x"
      }
      resources { cpu = 500 }
    }
    task "side" {
      driver = "docker"
      config { image = "y" }
      lifecycle { hook = "prestart" }
    }
  }
}
