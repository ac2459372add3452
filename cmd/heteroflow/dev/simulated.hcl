# Simulated cards of every brand. Change them as you like: this file is read when "heteroflow dev" starts.
seed = 1

card "nvidia" {
  model     = "A100-SXM4-80GB"
  count     = 2
  memory    = "80GiB"
  modes     = ["mps", "mig"]
  numa_node = 0
}

card "mthreads" {
  model  = "S4000"
  memory = "48GiB"
}

card "hygon" {
  model  = "K100_AI"
  memory = "64GiB"
}

card "cambricon" {
  model  = "MLU590"
  memory = "80GiB"
}

card "biren" {
  model  = "BR106"
  memory = "32GiB"
}

card "ascend" {
  model  = "910B3"
  count  = 2
  memory = "64GiB"
}

card "kunlunxin" {
  model  = "P800"
  memory = "96GiB"
}

card "amd" {
  model  = "MI308X"
  memory = "192GiB"
}

card "metax" {
  model  = "C500"
  memory = "64GiB"
}

card "iluvatar" {
  model  = "BI-V150"
  memory = "32GiB"
}

card "enflame" {
  model  = "S60"
  memory = "48GiB"
}

card "intel" {
  model  = "Arc-B580"
  memory = "12GiB"
}
