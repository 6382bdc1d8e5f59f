#include "bench/report/minimum.h"

#include <algorithm>
#include <utility>

namespace tailrace {

std::vector<double> minimise(std::vector<double> start, double size, int evaluations,
                             const std::function<double(const std::vector<double>&)>& f) {
  using Point = std::pair<double, std::vector<double>>;
  const size_t n = start.size();
  std::vector<Point> simplex = {{f(start), start}};
  for (size_t i = 0; i < n; ++i) {
    std::vector<double> corner = start;
    corner[i] += size;
    simplex.emplace_back(f(corner), corner);
  }
  const auto by_value = [](const Point& a, const Point& b) { return a.first < b.first; };
  for (int used = static_cast<int>(n) + 1; used < evaluations;) {
    std::ranges::sort(simplex, by_value);
    std::vector<double> centre(n);
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < n; ++k) centre[k] += simplex[i].second[k] / static_cast<double>(n);
    }
    const auto along = [&](double t) {
      std::vector<double> point(n);
      for (size_t k = 0; k < n; ++k) point[k] = centre[k] + t * (simplex[n].second[k] - centre[k]);
      ++used;
      return Point{f(point), point};
    };
    Point reflected = along(-1);
    if (reflected.first < simplex[0].first) {
      Point further = along(-2);
      simplex[n] = std::min(reflected, further, by_value);
    } else if (reflected.first < simplex[n - 1].first) {
      simplex[n] = reflected;
    } else if (Point nearer = along(0.5); nearer.first < simplex[n].first) {
      simplex[n] = nearer;
    } else {
      for (size_t i = 1; i <= n; ++i) {
        for (size_t k = 0; k < n; ++k)
          simplex[i].second[k] = (simplex[0].second[k] + simplex[i].second[k]) / 2;
        simplex[i].first = f(simplex[i].second);
        ++used;
      }
    }
  }
  return std::ranges::min_element(simplex, by_value)->second;
}

}  // namespace tailrace
