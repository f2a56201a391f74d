"""`/v1/secrets` and `/v1/variables`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.secrets.views import SecretViewSet, VariableViewSet

router = SimpleRouter(trailing_slash=False)
router.register("secrets", SecretViewSet, basename="secret")
router.register("variables", VariableViewSet, basename="variable")

urlpatterns = router.urls
