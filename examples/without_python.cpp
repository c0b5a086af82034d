// A model with ops of opgen in a program without Python: the package of a model that was compiled
// ahead of time, and the library of its ops. See `opgen build --library` in the README.
//
//     without_python net.pt2 libdepth_to_space.so
//
// runs the model on 1 x 8 x 3 x 5 numbers and prints the shape and the numbers of the result.

#include <ATen/ops/from_blob.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <iostream>
#include <numeric>

int main(int count, char **arguments)
{
    if (count != 3) {
        std::cerr << "usage: without_python PACKAGE LIBRARY\n";
        return 2;
    }
    // Loading the library registers its ops; they are there until the program ends.
    if (!dlopen(arguments[2], RTLD_NOW)) {
        std::cerr << dlerror() << "\n";
        return 1;
    }
    torch::inductor::AOTIModelPackageLoader model(arguments[1]);
    std::vector<float> numbers(1 * 8 * 3 * 5);
    std::iota(numbers.begin(), numbers.end(), 0.0f);
    const at::Tensor x = at::from_blob(numbers.data(), {1, 8, 3, 5}, at::kFloat);
    const at::Tensor y = model.run({x}).at(0).contiguous();
    std::cout << y.sizes() << "\n";
    for (int64_t at = 0; at < y.numel(); at++) std::printf("%.9g\n", y.data_ptr<float>()[at]);
}
